use super::*;

fn told(text: &str) -> Vec<String> {
    faults(text, "px-a")
        .iter()
        .map(Finding::to_string)
        .collect()
}

fn with(body: &str) -> Vec<String> {
    told(&format!("#cloud-config\n{body}"))
}

#[test]
fn an_ordinary_cloud_config_passes() {
    let sound = "\
# comment
users: [default, {name: ops, sudo: 'ALL=(ALL) NOPASSWD:ALL'}]
packages: [tcpdump, [curl, '7.88']]
package_update: yes
hostname: px-a
fqdn: px-a.example.org
preserve_hostname: no
write_files:
- path: /etc/systemd/system/proxyd.service.d/ops.conf
  permissions: 0644
  content: |
    [Service]
    Nice=5
- {path: /etc/egress-proxies.conf, encoding: b64, content: !!binary \"aGk=\"}
x: &keys {a: 1}
y: {<<: *keys, 2: three}
runcmd:
- [sh, -c, 'echo hi']
- echo 012
power_state: {mode: reboot}
ssh_authorized_keys: [ssh-ed25519 AAAA]
";
    assert_eq!(with(sound), [""; 0]);
    assert_eq!(told(NONE), [""; 0]);
    assert_eq!(told("#cloud-config \r\nruncmd: [ls]\r\n"), [""; 0]);
}

#[test]
fn other_formats_are_refused_by_name() {
    for (text, name) in [
        ("#!/bin/sh\nls\n", "is a script"),
        ("\n  #!/bin/sh\n", "is a script"),
        ("## template: jinja\n#cloud-config\n", "is a Jinja template"),
        (
            "Content-Type: multipart/mixed; boundary=x\n",
            "is a MIME message",
        ),
        (
            "#include\nhttp://192.0.2.1/\n",
            "is a list of addresses to include",
        ),
        (
            "#include-once\nhttp://192.0.2.1/\n",
            "is a list of addresses to include",
        ),
        ("#cloud-config-archive\n- a\n", "is a cloud-config archive"),
        (
            "#cloud-config-jsonp\n[]\n",
            "is a JSON patch of a cloud-config",
        ),
        ("#cloud-boothook\n#!/bin/sh\n", "is a boothook"),
        ("#part-handler\n", "is a part handler"),
        ("H4sIAAAA", "is gzip as base64"),
    ] {
        let told = told(text);
        assert_eq!(told.len(), 1, "{text}");
        assert!(
            told[0].starts_with("userData: ") && told[0].contains(name),
            "{}",
            told[0]
        );
    }
}

#[test]
fn the_header_is_the_first_line() {
    for text in [
        "",
        "runcmd: [ls]\n",
        "\n#cloud-config\n",
        "# cloud-config\n",
        "#Cloud-Config\n",
    ] {
        let told = told(text);
        assert_eq!(told.len(), 1, "{text:?}");
        assert!(
            told[0].contains("begin with the line `#cloud-config`"),
            "{}",
            told[0]
        );
    }
    assert!(told("\u{feff}#cloud-config\n{}\n")[0].contains("U+FEFF"));
}

#[test]
fn what_cloud_init_would_read_as_a_mime_message_is_refused() {
    let text = "write_files:\n- {path: /mail, content: 'MIME-Version: 1.0'}\n";
    assert!(with(text)[0].contains("MIME message"));
    let far = format!("# {}\n{text}", "x".repeat(MIME_REACH));
    assert_eq!(with(&far), [""; 0]);
}

#[test]
fn what_is_no_map_of_yaml_is_refused_with_its_place() {
    for (body, told) in [
        ("", "userData: #cloud-config: holds nothing"),
        (
            "# only a comment\n",
            "userData: #cloud-config: holds nothing",
        ),
        ("- ls\n", "userData: a list: is no map"),
        ("ls\n", "userData: a text: is no map"),
        (
            "a: 1\nb: 2\na: 3\n",
            "the key `a` stands here a second time",
        ),
        ("a: [1\n", "cannot be read as YAML"),
        ("a: 1\n---\nb: 2\n", "a second document begins here"),
        ("a: \"\u{7f}\"\n", "userData: line 2: holds U+007F"),
        ("a: {{ x }}\n", "cannot be read as YAML"),
    ] {
        let all = with(body);
        assert_eq!(all.len(), 1, "{body}: {all:?}");
        assert!(all[0].contains(told), "{body}: {}", all[0]);
    }
}

#[test]
fn every_conflict_is_refused_by_its_key_with_value_and_remedy() {
    for (body, told) in [
        (
            "vendor_data: {enabled: no}",
            "userData.vendor_data: a map: decides whether proxyd is installed at all: remove it",
        ),
        (
            "cloud_final_modules: []",
            "userData.cloud_final_modules: a list: decides which modules of cloud-init run, \
             ours among them: set it in the image, or remove it",
        ),
        (
            "cloud_init_modules: null",
            "userData.cloud_init_modules: null: decides which modules of cloud-init run: set it \
             in the image, or remove it",
        ),
        (
            "cloud_config_modules: [runcmd]",
            "userData.cloud_config_modules: a list: decides which modules of cloud-init run: \
             set it in the image, or remove it",
        ),
        (
            "network: {version: 2}",
            "userData.network: a map: has no effect in user-data: remove it; the seed has a \
             network configuration of its own",
        ),
        (
            "hostname: web",
            "userData.hostname: web: the machine's name is `px-a`: remove it",
        ),
        (
            "hostname: 12",
            "userData.hostname: 12: the machine's name is `px-a`: remove it",
        ),
        (
            "fqdn: px-b.example.org",
            "userData.fqdn: px-b.example.org: the machine's name is `px-a`: remove it",
        ),
        (
            "preserve_hostname: yes",
            "userData.preserve_hostname: true: keeps the machine from taking its name: remove it",
        ),
        (
            "power_state: {mode: poweroff}",
            "userData.power_state.mode: poweroff: turns the machine off at the end of its first \
             boot: use `reboot`, or remove it",
        ),
        (
            "users: [default, {name: proxyd}]",
            "userData.users[1].name: proxyd: is the account that the proxy runs as: choose \
             another name",
        ),
        (
            "users: [proxyd]",
            "userData.users[0]: proxyd: is the account that the proxy runs as: choose another \
             name",
        ),
        (
            "users: {proxyd: {}}",
            "userData.users.proxyd: proxyd: is the account that the proxy runs as: choose \
             another name",
        ),
        (
            "users: ops, proxyd",
            "userData.users: proxyd: is the account that the proxy runs as: choose another name",
        ),
        (
            "user: {name: proxyd}",
            "userData.user.name: proxyd: is the account that the proxy runs as: choose another \
             name",
        ),
        (
            "write_files: [{path: /a}, {path: /etc//systemd/./system/x/../proxyd.service}]",
            "userData.write_files[1].path: /etc//systemd/./system/x/../proxyd.service: is \
             written by the seed itself: remove it; a unit is changed by a drop-in, in \
             proxyd.service.d/",
        ),
    ] {
        assert_eq!(with(body), [told], "{body}");
    }
}

#[test]
fn all_our_paths_are_refused_and_their_neighbours_are_not() {
    for path in [
        "/etc/egress-proxies",
        "/etc/egress-proxies/proxyd.json",
        "/usr/local/bin/proxyd",
        "/etc/cloud/cloud-init.disabled",
        "/etc/systemd/system/egress-proxies-first-boot.service",
        "/var/lib/cloud/instance/manual-clean",
    ] {
        assert_eq!(
            with(&format!("write_files: [{{path: {path}}}]")).len(),
            1,
            "{path}"
        );
    }
    for path in [
        "/etc/egress-proxies2",
        "/usr/local/bin/proxyd2",
        "/etc/cloud/cloud.cfg.d/a.cfg",
    ] {
        assert_eq!(with(&format!("write_files: [{{path: {path}}}]")), [""; 0]);
    }
}

#[test]
fn a_key_behind_a_merge_is_found_too() {
    let body = "x: &off\n  vendor_data: {enabled: false}\n<<: *off\n";
    assert_eq!(with(body).len(), 1);
}

#[test]
fn faults_are_told_all_at_once_and_tell_no_secrets() {
    let body = "hostname: a\nvendor_data: {}\nusers: [proxyd]\n";
    assert_eq!(with(body).len(), 3);
    let broken = with("chpasswd: {list: 'root:swordfish'}\npassword: 'swordfish\n");
    assert!(!broken.concat().contains("swordfish"), "{broken:?}");
}

#[test]
fn what_older_readers_of_yaml_drop_whole_is_refused_with_its_line() {
    assert_eq!(
        with("a: 1\nb:\t2\n"),
        [
            "userData: line 3: holds a tab outside quotes and blocks, which cloud-init does not \
          read: use spaces"
        ]
    );
    assert_eq!(
        with("a: &x 1\nb: &x 2\n"),
        [
            "userData: line 3, &x: the anchor has this name a second time, which cloud-init does \
          not read: name it otherwise"
        ]
    );
    assert_eq!(with("a: |\n  all:\n  \tmake # x\nb: 1 # \t\n"), [""; 0]);
    assert!(with("a: x\u{2028}vendor_data: 1\n")[0].contains("U+2028"));
    assert!(with("a: !mine x\n")[0].contains("cannot be read as YAML"));
}
