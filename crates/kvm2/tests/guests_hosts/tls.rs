//! `qemu+tls`: an authority, a server and clients of the test's own.

use crate::support::{
    Ground, Machine,
    host::{Host, Wish},
    provider,
};
use egress_core::ErrorClass;
use egress_kvm2::{Config, client::HostUri};
use egress_provider::{CheckReason, Provider};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
};

/// An authority, and the folder that holds what it signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        fs::write(folder.join("ca.pem"), pem).expect("written");
        Self {
            issuer: Issuer::new(params, key),
            folder: folder.to_owned(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Signs a certificate for this name, valid in these years: `<name>.pem`, `<name>.key`.
    fn sign(&self, name: &str, years: (i32, i32), purpose: ExtendedKeyUsagePurpose) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        // libvirt 9.0 refuses one without the second use, also where no key is enciphered.
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate");
        fs::write(self.file(&format!("{name}.pem")), leaf.pem()).expect("written");
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem()).expect("written");
    }

    fn client(&self, name: &str, years: (i32, i32)) {
        self.sign(name, years, ExtendedKeyUsagePurpose::ClientAuth);
    }

    fn server(&self, years: (i32, i32)) {
        self.sign("localhost", years, ExtendedKeyUsagePurpose::ServerAuth);
    }
}

const NOW: (i32, i32) = (2020, 2120);
const PAST: (i32, i32) = (2001, 2002);

/// The configuration of a client.
fn config(plain: &Config, uri: &str, authority: &Path, client: &Authority, name: &str) -> Config {
    let mut config = plain.clone();
    uri.clone_into(&mut config.hosts[0].uri);
    config.ca_file = Some(authority.join("ca.pem"));
    config.cert_file = Some(client.file(&format!("{name}.pem")));
    config.key_file = Some(client.file(&format!("{name}.key")));
    assert_eq!(config.validate("kvm2"), []);
    config
}

/// What a provider with this configuration is told: at each call, and by `check`.
async fn refused(
    config: Config,
    class: ErrorClass,
    reason: CheckReason,
    field: &str,
    words: &[&str],
) {
    let provider = provider(config);
    let error = provider.list(&[]).await.expect_err("no connection");
    assert_eq!(error.class(), class, "{}", error.chain());
    let report = provider.check().await.expect("a report");
    let [finding] = report.findings.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(finding.reason, reason, "{finding:?}");
    assert_eq!(finding.field.as_deref(), Some(field), "{finding:?}");
    let told = format!("{} {}", finding.found, finding.remedy);
    for word in words {
        assert!(told.contains(word), "{word:?} is not in {told}");
        assert!(
            !finding.found.contains(word) || error.said().contains(word),
            "{word:?} is not in {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_made_by_tls_and_each_certificate_that_does_not_fit_is_named() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(&folder.path().join("right"));
    let other = Authority::new(&folder.path().join("other"));
    authority.server(NOW);
    authority.client("engine", NOW);
    authority.client("late", PAST);
    other.client("engine", NOW);
    // Free a moment ago, and asked for by nobody else in this network.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let file = |name: &str| authority.file(name).display().to_string();
    let lines = format!(
        "listen_tls = 1\nlisten_addr = \"127.0.0.1\"\ntls_port = \"{port}\"\nauth_tls = \"none\"\n\
         key_file = \"{}\"\ncert_file = \"{}\"\nca_file = \"{}\"\n\
         tls_no_sanity_certificate = 1\n",
        file("localhost.key"),
        file("localhost.pem"),
        file("ca.pem")
    );
    let wish = Wish {
        name: "by-tls",
        subnet: 151,
        tls: Some(&lines),
        pool: None,
    };
    let mut host = Host::start(&ground, &wish, ground.empty_image().await).await;
    let uri = format!("qemu+tls://localhost:{port}/system");
    uri.parse::<HostUri>().expect("a URI");
    let plain = ground.config().await;
    let right = authority.folder.clone();
    let good = config(&plain, &uri, &right, &authority, "engine");

    let mut machine = Machine::claimed("by-tls", good.clone()).await;
    assert_eq!(
        machine.provider.check().await.expect("a report").findings,
        []
    );
    machine.up().await;
    assert!(host.virsh(&["list", "--name"]).contains(machine.key.name()));
    machine.seal().await.expect("sealed");
    machine.down().await;

    let (invalid, unauthorized) = (CheckReason::CertificateInvalid, CheckReason::Unauthorized);
    let wrong_ca = config(&plain, &uri, &other.folder, &authority, "engine");
    let ca = other.file("ca.pem").display().to_string();
    let words = [ca.as_str(), "localhost", "name the authority"];
    refused(wrong_ca, ErrorClass::Permanent, invalid, "caFile", &words).await;

    let by_address = uri.replace("localhost", "127.0.0.1");
    let wrong_name = config(&plain, &by_address, &right, &authority, "engine");
    let words = ["127.0.0.1", "localhost", "as its certificate does"];
    refused(
        wrong_name,
        ErrorClass::Permanent,
        invalid,
        "hosts[0].uri",
        &words,
    )
    .await;

    for (client, name) in [(&other, "engine"), (&authority, "late")] {
        let stranger = config(&plain, &uri, &right, client, name);
        let pem = client.file(&format!("{name}.pem")).display().to_string();
        let words = [pem.as_str(), "valid now"];
        refused(
            stranger,
            ErrorClass::Unauthorized,
            unauthorized,
            "certFile",
            &words,
        )
        .await;
    }

    let mut missing = good.clone();
    let gone = folder.path().join("gone.pem");
    missing.key_file = Some(gone.clone());
    let field = "caFile, certFile, keyFile";
    let told = gone.display().to_string();
    refused(
        missing,
        ErrorClass::Permanent,
        invalid,
        field,
        &[&told, "in PEM"],
    )
    .await;

    // The host's own certificate runs out. The server would tell that itself, and was told to
    // go on.
    let patient = provider(good.clone());
    patient.list(&[]).await.expect("a listing");
    host.stop();
    authority.server(PAST);
    host.go().await;
    let words = ["localhost", "not valid at this time", "renew"];
    refused(good, ErrorClass::Permanent, invalid, "hosts[0].uri", &words).await;
    host.stop();
    authority.server(NOW);
    host.go().await;
    // A provider that has been there all the time.
    patient.list(&[]).await.expect("a listing");
}
