use super::*;
use egress_core::proxy_config::{Auth, Limits, Verifier};
use std::sync::LazyLock;

fn config() -> ProxydConfig {
    ProxydConfig {
        key: "px-a".into(),
        attempt: 1,
        listen: "0.0.0.0:3128".parse().expect("address"),
        management: None,
        egress: None,
        clients: Vec::new(),
        auth: Auth::Basic {
            verifiers: vec![Verifier::new("egress", "swordfish")],
            generation: 1,
        },
        limits: Limits::default(),
    }
}

/// The head of a static program for x86-64.
static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| program::tests::program(62, 1));

fn seed(config: &ProxydConfig) -> Seed<'_> {
    Seed {
        proxyd: config,
        mac: Some("52:54:00:12:34:56"),
        guest_agent: GuestAgent::Package,
        payload: Some(&PROGRAM),
        user_data: None,
    }
}

fn told(seed: Seed<'_>) -> Vec<String> {
    let findings = seed.render().expect_err("faults");
    findings.iter().map(Finding::to_string).collect()
}

fn holds(image: &[u8], text: &str) -> bool {
    image.windows(text.len()).any(|at| at == text.as_bytes())
}

#[test]
fn the_same_values_give_the_same_bytes() {
    let config = config();
    let image = seed(&config).render().expect("image");
    assert_eq!(image, seed(&config).render().expect("image"));
    let other = Seed {
        mac: None,
        ..seed(&config)
    }
    .render()
    .expect("image");
    assert_ne!(image, other);
}

#[test]
fn the_seed_holds_a_verifier_and_no_password() {
    let config = config();
    let image = seed(&config).render().expect("image");
    let verifier = String::from(Verifier::new("egress", "swordfish"));
    assert!(holds(&image, &verifier));
    assert!(!holds(&image, "swordfish"));
}

#[test]
fn the_users_text_goes_in_byte_for_byte() {
    let config = config();
    let text = "#cloud-config\r\nwrite_files: [{path: /a, permissions: 0644}]\nruncmd: [ 'ä' ]";
    let user_data = CloudConfig::new(text.to_owned());
    let image = Seed {
        user_data: Some(&user_data),
        ..seed(&config)
    };
    assert!(holds(&image.render().expect("image"), text));
}

#[test]
fn a_baked_image_gets_the_configuration_and_no_program() {
    let config = config();
    let baked = Seed {
        guest_agent: GuestAgent::Baked,
        payload: None,
        ..seed(&config)
    };
    let image = baked.render().expect("image");
    assert!(holds(&image, "PROXYD.JSON;1"));
    assert!(holds(&image, "EGRESS_PROXIES_FIRST_BOOT.SERVICE;1") || holds(&image, "first-boot"));
    assert!(!holds(&image, "PROXYD.;1") && !holds(&image, "PROXYD.SERVICE;1"));
    assert!(!holds(&image, "apt-get"));
}

#[test]
fn the_sources_of_the_agent_are_read_by_name() {
    for agent in [GuestAgent::Builtin, GuestAgent::Package, GuestAgent::Baked] {
        assert_eq!(agent.as_str().parse(), Ok(agent));
    }
    let misspelt = "packages"
        .parse::<GuestAgent>()
        .expect_err("refused")
        .to_string();
    assert!(misspelt.ends_with("did you mean `package`?"), "{misspelt}");
}

#[test]
fn the_agents_unit_is_in_the_seed_where_proxyd_is_the_agent() {
    let config = config();
    for (guest_agent, has_it) in [(GuestAgent::Builtin, true), (GuestAgent::Package, false)] {
        let image = Seed {
            guest_agent,
            ..seed(&config)
        };
        let image = image.render().expect("image");
        assert_eq!(
            holds(&image, "ExecStart=/usr/local/bin/proxyd --agent"),
            has_it
        );
        assert_eq!(holds(&image, "apt-get"), !has_it);
        assert!(holds(&image, "meta skuid proxyd jump begun"));
    }
}

#[test]
fn a_missing_superfluous_or_foreign_program_is_told_apart() {
    let config = config();
    let missing = told(Seed {
        payload: None,
        ..seed(&config)
    });
    assert!(missing[0].starts_with("payload: (missing): `guestAgent: package` needs"));
    assert!(missing[0].contains("cargo xtask payload"));
    let superfluous = told(Seed {
        guest_agent: GuestAgent::Baked,
        ..seed(&config)
    });
    assert!(superfluous[0].contains("takes proxyd from the image"));
    let page = told(Seed {
        payload: Some(b"<html>"),
        ..seed(&config)
    });
    assert!(page[0].starts_with("payload: 6 bytes: is no Linux program"));
}

#[test]
fn all_faults_are_told_at_once() {
    let config = ProxydConfig {
        key: "Px_a".into(),
        ..config()
    };
    let user_data = CloudConfig::new("#cloud-config\nhostname: b\n".to_owned());
    let bad = Seed {
        mac: Some("none"),
        payload: None,
        user_data: Some(&user_data),
        ..seed(&config)
    };
    let paths: Vec<_> = bad
        .render()
        .expect_err("faults")
        .into_iter()
        .map(|finding| finding.path)
        .collect();
    assert_eq!(paths, ["payload", "proxyd.key", "mac", "userData.hostname"]);
}

#[test]
fn a_host_name_is_one_label() {
    for good in ["a", "px-a", "7", &"a".repeat(63)] {
        assert!(is_host_name(good), "{good}");
    }
    for bad in ["", "-a", "a-", "A", "a.b", "a b", "a\"", &"a".repeat(64)] {
        assert!(!is_host_name(bad), "{bad}");
    }
}
