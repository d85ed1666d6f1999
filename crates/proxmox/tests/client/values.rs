//! Ids, UPIDs, URLs, names, and the bytes of requests.

use egress_proxmox::client::{
    BadUrl, BaseUrl, Call, CertificateTrouble, IsoName, NodeName, Upid, Vmid, call::Payload,
    poll_waits,
};
use std::time::Duration;

#[test]
fn x13_a_upid_is_read_whole() {
    let upid: Upid = "UPID:pve-1:00000ACD:100006AE8:679A423B:qmclone:112:svc@pve!tok:"
        .parse()
        .unwrap();
    assert_eq!(upid.node().as_str(), "pve-1");
    assert_eq!(upid.kind(), "qmclone");
    assert_eq!(upid.vmid(), Vmid::new(112));
    assert_eq!(upid.user(), "svc@pve!tok");
    assert_eq!(upid.started(), 0x679A_423B);
    let upload: Upid = "UPID:pve1:00000ACD:00006AE8:679A423B:imgcopy::root@pam:"
        .parse()
        .unwrap();
    assert_eq!((upload.id(), upload.vmid()), ("", None));
}

#[test]
fn x13_what_is_not_a_upid_is_refused() {
    for text in [
        "",
        "UPID",
        "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok",
        "UPID:pve1:ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:",
        "UPID:pve1:00000ACD:00006AE8:679A423B:qm clone:112:svc@pve:",
        "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:1/2:svc@pve:",
        "UPID:../x:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve:",
        // One field more, as the backup server writes it.
        "UPID:pbs:00000267:0011E1D7:00000009:6A48CA08:acme-register:test1:root@pam:",
    ] {
        assert!(text.parse::<Upid>().is_err(), "{text}");
    }
}

#[test]
fn tasks_are_polled_soon_and_then_less_often() {
    let waits: Vec<_> = poll_waits().take(8).map(|w| w.as_millis()).collect();
    assert_eq!(waits, [250, 375, 562, 843, 1265, 1898, 2000, 2000]);
    assert_eq!(poll_waits().nth(1000), Some(Duration::from_secs(2)));
}

#[test]
fn a_vmid_has_bounds_and_a_node_name_no_path() {
    assert!(Vmid::new(99).is_none() && Vmid::new(1_000_000_000).is_none());
    assert_eq!("100".parse::<Vmid>().unwrap().get(), 100);
    assert!("1e3".parse::<Vmid>().is_err());
    for name in ["", "a/b", "pve1.example", "-a", "a-", "a b"] {
        assert!(name.parse::<NodeName>().is_err(), "{name}");
    }
}

#[test]
fn b79_a_url_is_the_root_of_an_https_server_in_each_of_its_spellings() {
    for text in [
        "https://h:8006",
        "https://h:8006/",
        "https://h:8006/api2/json",
        "https://h:8006/api2/json/",
    ] {
        let url: BaseUrl = text.parse().unwrap();
        assert_eq!(url.to_string(), "https://h:8006");
    }
    let url: BaseUrl = "https://192.0.2.8:8006".parse().unwrap();
    assert_eq!((url.host(), url.port()), ("192.0.2.8", 8006));
    assert_eq!("https://pve1/".parse::<BaseUrl>().unwrap().port(), 443);
    let six: BaseUrl = "https://[2001:db8::1]:8006".parse().unwrap();
    assert_eq!(six.host(), "2001:db8::1");
    assert_eq!(six.to_string(), "https://[2001:db8::1]:8006");
    for (text, bad) in [
        ("http://pve1:8006", BadUrl::Scheme),
        ("pve1:8006", BadUrl::Malformed),
        ("pve1", BadUrl::Malformed),
        ("", BadUrl::Malformed),
        ("https://pve1:8006/pve2", BadUrl::Extra),
        ("https://pve1:8006?x=1", BadUrl::Extra),
        ("https://root@pve1:8006", BadUrl::Extra),
    ] {
        assert_eq!(text.parse::<BaseUrl>().unwrap_err(), bad, "{text}");
    }
}

#[test]
fn an_iso_name_is_one_that_the_server_does_not_rewrite() {
    let name: IsoName = "px-0a1b2c3d-egress-a-1.iso".parse().unwrap();
    assert_eq!(name.volid("isos"), "isos:iso/px-0a1b2c3d-egress-a-1.iso");
    for text in [
        "",
        ".iso",
        "a.ISO",
        "a.img",
        "a b.iso",
        "a/b.iso",
        "../a.iso",
        "-a.iso",
        "ä.iso",
        "a\".iso",
        "a\r\n.iso",
    ] {
        assert!(text.parse::<IsoName>().is_err(), "{text:?}");
    }
    assert!(
        format!("{}.iso", "x".repeat(251))
            .parse::<IsoName>()
            .is_ok()
    );
    assert!(
        format!("{}.iso", "x".repeat(252))
            .parse::<IsoName>()
            .is_err()
    );
}

fn upload(image: &'static [u8]) -> (String, Vec<u8>) {
    let call = Call::UploadIso {
        node: "pve1".parse().unwrap(),
        storage: "isos".to_owned(),
        name: "px-1.iso".parse().unwrap(),
        image: image.into(),
    };
    let rendered = call.render();
    assert!(matches!(rendered.payload, Payload::Iso { .. }));
    let (content_type, body) = rendered.body();
    (content_type.unwrap(), body.to_vec())
}

#[test]
fn an_upload_is_written_as_the_server_reads_it() {
    let (content_type, body) = upload(b"CD001\r\n\0");
    assert_eq!(
        content_type,
        "multipart/form-data; boundary=egress-proxies-seed"
    );
    assert_eq!(
        String::from_utf8(body).unwrap(),
        "--egress-proxies-seed\r\n\
         Content-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n\
         --egress-proxies-seed\r\n\
         Content-Disposition: form-data; name=\"filename\"; filename=\"px-1.iso\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n\
         CD001\r\n\0\r\n\
         --egress-proxies-seed--\r\n"
    );
}

#[test]
fn a_boundary_never_stands_in_the_image() {
    let (content_type, _) = upload(b"\r\n--egress-proxies-seed--\r\n egress-proxies-seedx");
    assert_eq!(
        content_type,
        "multipart/form-data; boundary=egress-proxies-seedxx"
    );
}

#[test]
fn path_and_form_are_percent_encoded_down_to_the_unreserved_characters() {
    let delete = Call::DeleteVolume {
        node: "pve1".parse().unwrap(),
        storage: "isos".to_owned(),
        volid: "isos:iso/a_b-c.1~;=&.iso".to_owned(),
        delay_s: Some(5),
    };
    assert_eq!(
        delete.render().target(),
        "/api2/json/nodes/pve1/storage/isos/content/isos%3Aiso%2Fa_b-c.1~%3B%3D%26.iso?delay=5"
    );
    let config = Call::SetConfig {
        node: "pve1".parse().unwrap(),
        vmid: Vmid::new(101).unwrap(),
        change: Box::new(egress_proxmox::client::ConfigChange {
            net0: Some("virtio=BC:24:11:AA:00:01,bridge=vmbr0".to_owned()),
            tags: Some(vec!["a".to_owned(), "b".to_owned()]),
            description: Some("é 1+1\n".to_owned()),
            onboot: Some(true),
            protection: Some(false),
            ..Default::default()
        }),
    };
    let (_, body) = config.render().body();
    assert_eq!(
        std::str::from_utf8(&body).unwrap(),
        "net0=virtio%3DBC%3A24%3A11%3AAA%3A00%3A01%2Cbridge%3Dvmbr0&tags=a%3Bb\
         &description=%C3%A9%201%2B1%0A&onboot=1&protection=0"
    );
}

#[test]
fn f20_a_size_is_absolute_and_in_whole_gibibytes_where_it_can_be() {
    let size = |bytes| {
        let call = Call::Resize {
            node: "pve1".parse().unwrap(),
            vmid: Vmid::new(101).unwrap(),
            disk: "scsi0".to_owned(),
            bytes,
        };
        String::from_utf8(call.render().body().1.to_vec()).unwrap()
    };
    assert_eq!(size(10 << 30), "disk=scsi0&size=10G");
    assert_eq!(size(1800 << 20), "disk=scsi0&size=1887436800");
}

#[test]
fn the_trouble_with_a_certificate_is_told_in_words() {
    for (trouble, text) in [
        (
            CertificateTrouble::WrongName {
                expected: "192.0.2.8".to_owned(),
                presented: vec!["pve1".to_owned(), "127.0.0.1".to_owned()],
            },
            "the server's certificate is for pve1, 127.0.0.1, not for 192.0.2.8",
        ),
        (
            CertificateTrouble::Expired {
                not_after: Some(1_700_000_000),
            },
            "the server's certificate expired at 2023-11-14T22:13:20Z",
        ),
        (
            CertificateTrouble::NotYetValid { not_before: None },
            "the server's certificate is not valid before an unknown time",
        ),
    ] {
        assert_eq!(trouble.to_string(), text);
    }
}
