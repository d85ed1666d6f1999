use super::*;

fn kind(code: i32, message: &str) -> Kind {
    let message = message.to_owned();
    ServerError { code, message }.kind()
}

/// As libvirt 9.0 answered; the last ones as its source has them.
const ROWS: &[(i32, &str, Kind)] = &[
    (
        42,
        "Domain not found: no domain with matching uuid '33333333-1111-4111-8111-111111111111'",
        Kind::NoDomain,
    ),
    (
        80,
        "metadata not found: Requested metadata element is not present",
        Kind::NoMetadata,
    ),
    (
        9,
        "operation failed: domain 't1' is already defined with uuid 11111111-1111-4111-8111-111111111111",
        Kind::DomainTaken,
    ),
    (
        9,
        "operation failed: domain 't1' already exists with uuid 11111111-1111-4111-8111-111111111111",
        Kind::DomainTaken,
    ),
    (
        55,
        "Requested operation is not valid: domain is not running",
        Kind::WrongState,
    ),
    (
        55,
        "Requested operation is not valid: domain is already running",
        Kind::WrongState,
    ),
    (
        86,
        "Guest agent is not responding: QEMU guest agent is not connected",
        Kind::AgentSilent,
    ),
    (
        74,
        "argument unsupported: QEMU guest agent is not configured",
        Kind::NoAgent,
    ),
    (
        49,
        "Storage pool not found: no storage pool with matching name 'nope'",
        Kind::NoPool,
    ),
    (
        55,
        "Requested operation is not valid: storage pool 'default' is not active",
        Kind::PoolInactive,
    ),
    (
        50,
        "Storage volume not found: no storage vol with matching name 'nope'",
        Kind::NoVolume,
    ),
    (
        90,
        "storage volume 'base.qcow2' exists already",
        Kind::VolumeTaken,
    ),
    (
        55,
        "Requested operation is not valid: volume target path '/pool/stale.qcow2' already exists",
        Kind::VolumeTaken,
    ),
    (
        38,
        "Cannot access storage file '/nope.qcow2': No such file or directory",
        Kind::HostFailed,
    ),
    (
        43,
        "Network not found: no network with matching name 'nope'",
        Kind::NoNetwork,
    ),
    (
        55,
        "Requested operation is not valid: network 'default' is not active",
        Kind::NetworkInactive,
    ),
    (
        92,
        "XML document failed to validate against schema: Unable to validate doc against /usr/share/libvirt/schemas/domain.rng\nElement domain has extra content: nonsense",
        Kind::DescriptionRefused,
    ),
    (
        8,
        "invalid argument: the machine 'nonsense' is not supported by emulator '/usr/bin/qemu-system-x86_64'",
        Kind::Unsupported,
    ),
    (
        67,
        "unsupported configuration: Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'xen'",
        Kind::Unsupported,
    ),
    (
        38,
        "cannot allocate 1048576 bytes in file '/pool/a': No space left on device",
        Kind::NoRoom,
    ),
    (
        1,
        "internal error: qemu unexpectedly closed the monitor",
        Kind::HostFailed,
    ),
    (
        68,
        "Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainDestroy)",
        Kind::Busy,
    ),
    (
        45,
        "authentication failed: access denied by policy",
        Kind::Unauthenticated,
    ),
    (
        88,
        "access denied: 'domain' denied access",
        Kind::AccessDenied,
    ),
    (4096, "something of a later version", Kind::Unclassified),
];

#[test]
fn every_known_error_has_a_meaning() {
    for (code, message, expected) in ROWS {
        assert_eq!(kind(*code, message), *expected, "{code}: {message}");
    }
}

#[test]
fn what_is_not_known_may_have_had_its_effect_if_it_was_to_have_one() {
    let error = ServerError {
        code: 4096,
        message: "odd\nand long ".repeat(60),
    };
    let read = error.failure(Procedure::DomainGetState, "a");
    assert_eq!(read.class, ErrorClass::Transient);
    let change = error.failure(Procedure::DomainDestroyFlags, "a");
    assert_eq!(change.class, ErrorClass::OutcomeUnknown);
    assert!(change.said.len() < 320 && !change.said.contains('\n'));
    assert!(
        change
            .to_string()
            .starts_with("DomainDestroyFlags of a: odd and long")
    );
}

#[test]
fn a_long_error_keeps_what_was_tried_and_why_it_failed() {
    let path = "/a/long/folder".repeat(30);
    let message = format!(
        "internal error: Child process (/usr/bin/qemu-img create {path}) unexpected exit status 1: qemu-img: {path}: Could not create: No space left on device"
    );
    let error = ServerError { code: 1, message };
    let failure = error.failure(Procedure::StorageVolCreateXml, "a");
    assert_eq!(failure.class, ErrorClass::Capacity);
    assert!(failure.said.starts_with("internal error: Child process"));
    assert!(failure.said.ends_with("No space left on device"));
}

#[test]
fn an_error_is_read_from_the_beginning_of_its_body() {
    use crate::client::xdr::Writer;
    let body = Writer::new()
        .i32(42)
        .i32(10)
        .optional(Some("Domain not found"))
        .i32(2)
        .u32(0)
        .into_bytes();
    let error = ServerError::decode(&body).unwrap();
    assert_eq!(
        (error.code, error.message.as_str()),
        (42, "Domain not found")
    );
    assert!(ServerError::decode(&body[..10]).is_err());
}
