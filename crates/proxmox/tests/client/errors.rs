//! Every recorded error has a place in the table.

use crate::scripted::{answer, bench};
use egress_core::ErrorClass;
use egress_proxmox::client::{
    Failure, Kind, Lock, TaskEnd, Upid,
    errors::{self, Effect, TABLE},
};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Recorded {
    source: String,
    method: String,
    status: u16,
    reason: String,
    body: String,
}

fn recorded() -> Vec<Recorded> {
    serde_json::from_str(include_str!("../data/errors.json")).unwrap()
}

async fn failure_of(row: &Recorded) -> Failure {
    let bench = bench(1, [answer(row.status, &row.reason, &row.body)]);
    if row.method == "GET" {
        bench.client.version().await.unwrap_err()
    } else {
        let start = bench
            .client
            .start(&"pve1".parse().unwrap(), "101".parse().unwrap())
            .unwrap();
        start.send().await.unwrap_err()
    }
}

#[tokio::test]
async fn every_recorded_error_has_a_place_in_the_table() {
    let mut unclassified = Vec::new();
    let mut in_front = Vec::new();
    let rows = recorded();
    assert!(rows.len() > 130, "only {} rows", rows.len());
    for row in &rows {
        let failure = failure_of(row).await;
        assert_eq!(failure.status, Some(row.status), "{}", row.source);
        match failure.kind {
            Kind::Unclassified => unclassified.push(format!("{}: {failure}", row.source)),
            Kind::SomethingInFront => in_front.push(format!("{}: {failure}", row.source)),
            _ => {}
        }
    }
    println!("unclassified: {unclassified:#?}");
    println!("something in front: {in_front:#?}");
    assert!(unclassified.is_empty(), "{unclassified:#?}");
    // Of the recorded ones only the 406 of a wrong base URL is not Proxmox VE's own.
    assert_eq!(in_front.len(), 1, "{in_front:#?}");
}

#[tokio::test]
async fn b42_recorded_errors_mean_what_they_say() {
    let by_source: BTreeMap<_, _> = recorded()
        .into_iter()
        .map(|row| (format!("{} {}", row.status, row.reason), row))
        .collect();
    let expect = |text: &'static str, kind: Kind, class: ErrorClass| (text, kind, class);
    let forbidden = |path: &str, privilege: &str| Kind::Forbidden {
        path: Some(path.to_owned()),
        privilege: Some(privilege.to_owned()),
    };
    for (text, kind, class) in [
        expect(
            "500 unable to create VM 101: config file already exists",
            Kind::VmidTaken,
            ErrorClass::Conflict,
        ),
        expect(
            "500 VM is locked (clone)",
            Kind::Locked(Lock::Clone),
            ErrorClass::Busy,
        ),
        expect(
            "500 checksum mismatch (file change by other user?)",
            Kind::DigestMismatch,
            ErrorClass::Busy,
        ),
        expect(
            "500 can't remove VM 190 - protection mode enabled",
            Kind::ProtectionMode,
            ErrorClass::NeedsOperator,
        ),
        expect(
            "401 No ticket",
            Kind::Unauthenticated,
            ErrorClass::Unauthorized,
        ),
        expect(
            "403 Permission check failed (/storage/isos, Datastore.AllocateTemplate)",
            forbidden("/storage/isos", "Datastore.AllocateTemplate"),
            ErrorClass::Unauthorized,
        ),
        expect(
            "403 Permission check failed (/vms/9000, VM.Clone)",
            forbidden("/vms/9000", "VM.Clone"),
            ErrorClass::Unauthorized,
        ),
        expect(
            "403 Permission check failed (/, Sys.Modify for modifying tag 'new')",
            Kind::ForbiddenTag {
                tag: "new".to_owned(),
            },
            ErrorClass::Unauthorized,
        ),
        expect(
            "403 Permission check failed (pool 'nopool' does not exist)",
            Kind::PoolMissing,
            ErrorClass::Permanent,
        ),
        expect(
            "500 QEMU guest agent is not running",
            Kind::AgentNotRunning,
            ErrorClass::Transient,
        ),
        expect(
            "500 No QEMU guest agent configured",
            Kind::NoAgentConfigured,
            ErrorClass::Permanent,
        ),
        expect(
            "500 VM 101 is not running",
            Kind::NotRunning,
            ErrorClass::Busy,
        ),
        expect(
            "595 Connection refused",
            Kind::NodeUnreachable,
            ErrorClass::Transient,
        ),
        expect(
            "500 can't lock file '/var/lock/qemu-server/lock-203.conf' - got timeout",
            Kind::LockTimeout,
            ErrorClass::Busy,
        ),
        expect(
            "500 storage 'disabled-st' is disabled",
            Kind::StorageUnavailable,
            ErrorClass::Transient,
        ),
        expect(
            "500 volume 'isos:iso/missing.iso' does not exist",
            Kind::VolumeMissing,
            ErrorClass::Transient,
        ),
    ] {
        let row = by_source
            .get(text)
            .unwrap_or_else(|| panic!("{text} is not among the recorded errors"));
        let failure = failure_of(row).await;
        assert_eq!((failure.kind, failure.class), (kind, class), "{text}");
    }
}

#[tokio::test]
async fn f2_a_missing_guest_is_a_fact_about_one_node_and_never_absence() {
    let rows: Vec<_> = recorded()
        .into_iter()
        .filter(|row| {
            row.reason.contains("configuration file") || row.reason.contains("Configuration file")
        })
        .filter(|row| {
            row.reason.contains("does not exist") || row.reason.contains("unable to find")
        })
        .collect();
    assert!(rows.len() >= 4, "{}", rows.len());
    for row in rows {
        let failure = failure_of(&row).await;
        assert_eq!(failure.kind, Kind::NotExistOnNode, "{}", row.source);
        assert_eq!(failure.class, ErrorClass::Transient, "{}", row.source);
    }
}

#[test]
fn every_recorded_task_end_has_a_place_in_the_table() {
    #[derive(Deserialize)]
    struct Ended {
        source: String,
        exitstatus: String,
    }
    let upid: Upid = "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:"
        .parse()
        .unwrap();
    let rows: Vec<Ended> = serde_json::from_str(include_str!("../data/task-ends.json")).unwrap();
    let mut unclassified = Vec::new();
    let mut successes = 0;
    for row in &rows {
        match TaskEnd::parse(&row.exitstatus).failure(&upid) {
            None => successes += 1,
            Some(failure) if failure.kind == Kind::Unclassified => {
                unclassified.push(format!("{}: {failure}", row.source));
            }
            Some(failure) => assert!(failure.said == row.exitstatus && failure.sent),
        }
    }
    println!("unclassified: {unclassified:#?}");
    assert!(unclassified.is_empty(), "{unclassified:#?}");
    assert_eq!(successes, 3, "OK and two counts of warnings");
}

#[test]
fn f4_a_clone_that_lost_its_vmid_says_so_in_three_ways() {
    let kind = errors::kind_of_task;
    assert_eq!(
        kind("unable to create VM 163: config file already exists"),
        Kind::VmidTaken
    );
    assert_eq!(
        kind(
            "close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/163.conf' failed: File exists"
        ),
        Kind::VmidTaken
    );
    // The loser of a race: the same text as for any lock, so that it is looked at first.
    assert_eq!(
        kind("can't lock file '/var/lock/qemu-server/lock-163.conf' - got timeout"),
        Kind::LockTimeout
    );
}

#[test]
fn f16_b57_b59_x2_a_task_ends_with_a_word_a_count_a_text_or_nothing() {
    assert_eq!(TaskEnd::parse("OK"), TaskEnd::Ok);
    assert_eq!(TaskEnd::parse("WARNINGS: 12"), TaskEnd::Warnings(12));
    assert!(TaskEnd::parse("WARNINGS: 1").is_success());
    let upid: Upid = "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:"
        .parse()
        .unwrap();
    for text in [
        "unexpected status",
        "",
        "unable to get last line from task log - x",
    ] {
        let failure = TaskEnd::parse(text).failure(&upid).unwrap();
        assert_eq!(failure.class, ErrorClass::OutcomeUnknown, "{text:?}");
    }
    let failed =
        TaskEnd::parse("403 Permission check failed (/storage/vmdata, Datastore.AllocateSpace)");
    let failure = failed.failure(&upid).unwrap();
    assert_eq!(failure.class, ErrorClass::Unauthorized);
    assert_eq!(
        failure.kind,
        Kind::Forbidden {
            path: Some("/storage/vmdata".to_owned()),
            privilege: Some("Datastore.AllocateSpace".to_owned()),
        }
    );
    let hotplug = TaskEnd::parse("400 Parameter verification failed. net0: hotplug problem - x");
    assert_eq!(hotplug.failure(&upid).unwrap().class, ErrorClass::Transient);
}

#[test]
fn b32_b40_a_text_of_another_program_inside_a_clone_is_known_by_its_cause_or_as_a_failed_step() {
    let class = |text: &str| errors::class_of(&errors::kind_of_task(text), Effect::Task, None);
    for (text, expected) in [
        (
            "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-s' - got timeout",
            ErrorClass::Busy,
        ),
        (
            "clone failed: cfs-lock 'storage-x' error: got lock request timeout",
            ErrorClass::Busy,
        ),
        (
            "clone failed: can't add VM 181 to pool 'pool1': cfs-lock 'file-user_cfg' error: got lock request timeout",
            ErrorClass::Busy,
        ),
        (
            "clone failed: can't add VM 181 to pool 'pool1': cfs-lock 'file-user_cfg' error: no quorum!",
            ErrorClass::Transient,
        ),
        (
            "clone failed: interrupted by signal",
            ErrorClass::OutcomeUnknown,
        ),
        ("clone failed: lvcreate said no", ErrorClass::Transient),
        (
            "clone failed: lvcreate 'pve/vm-1-disk-0' error:   Logical Volume \"vm-1-disk-0\" already exists in volume group \"pve\"",
            ErrorClass::Conflict,
        ),
        (
            // Room is judged by figures, never by a text.
            "clone failed: qemu-img: No space left on device",
            ErrorClass::Transient,
        ),
    ] {
        assert_eq!(class(text), expected, "{text}");
    }
}

#[test]
fn a_task_that_was_begun_though_the_answer_is_an_error_is_an_unknown_outcome() {
    let text = "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout";
    let kind = errors::kind_of(text).unwrap();
    assert_eq!(kind, Kind::TaskUnlisted);
    assert_eq!(
        errors::class_of(&kind, Effect::Mutation, Some(500)),
        ErrorClass::OutcomeUnknown
    );
    assert_eq!(
        errors::kind_of("got no worker upid - start worker failed"),
        Some(Kind::TaskNotBegun)
    );
}

#[test]
fn no_quorum_is_told_in_several_ways() {
    for text in [
        "cluster not ready - no quorum?",
        "unable to open file '/etc/pve/nodes/pve1/qemu-server/101.conf.tmp.42' - Permission denied",
        "cfs-lock 'file-user_cfg' error: no quorum!",
    ] {
        assert_eq!(errors::kind_of(text), Some(Kind::NoQuorum), "{text}");
    }
}

#[test]
fn every_row_of_the_table_can_be_reached() {
    for (index, row) in TABLE.iter().enumerate() {
        let text = row.text.replace('*', "x");
        let found = errors::row_of(&text).map(|found| found.text);
        assert_eq!(
            found,
            Some(row.text),
            "row {index} is hidden by an earlier one"
        );
        assert_ne!(row.kind(), Kind::Unclassified);
    }
}

#[tokio::test]
async fn f1_the_text_is_in_the_body_or_else_in_the_reason_phrase() {
    let told = |body: &'static str| async move {
        let bench = bench(1, [answer(500, "VM is locked (clone)", body)]);
        bench.client.version().await.unwrap_err()
    };
    for body in [
        "{\"data\":null}",
        "",
        "{\"data\":null,\"message\":\"VM is locked (clone)\\n\"}",
        "{\"data\":null,\"message\":\"\"}",
    ] {
        let failure = told(body).await;
        assert_eq!(failure.kind, Kind::Locked(Lock::Clone), "{body:?}");
        assert_eq!(failure.said, "VM is locked (clone)", "{body:?}");
    }
}

#[tokio::test]
async fn what_is_said_about_each_parameter_is_part_of_the_text() {
    let body = r#"{"data":null,"message":"Parameter verification failed.\n","errors":{"tags":"invalid format - invalid characters in tag\n","memory":"too much"}}"#;
    let bench = bench(1, [answer(400, "Parameter verification failed.", body)]);
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(
        failure.to_string(),
        "GET /version: 400 Parameter verification failed. memory: too much; \
         tags: invalid format - invalid characters in tag"
    );
    assert_eq!(failure.class, ErrorClass::Permanent);
    let Kind::ParameterInvalid { fields } = failure.kind else {
        panic!("{failure:?}");
    };
    assert_eq!(fields["memory"], "too much");
}

#[tokio::test]
async fn what_is_not_proxmox_ve_is_called_so_and_never_read_as_absence() {
    let page = "<html><head><title>404</title></head></html>";
    for (status, reason, body, on_mutation) in [
        (404, "Not Found", page, ErrorClass::Transient),
        (404, "Not Found", "", ErrorClass::Transient),
        (406, "Not Acceptable", "", ErrorClass::Transient),
        (301, "Moved Permanently", "", ErrorClass::Transient),
        (429, "Too Many Requests", "", ErrorClass::Transient),
        (
            500,
            "Internal Server Error",
            page,
            ErrorClass::OutcomeUnknown,
        ),
        (502, "Bad Gateway", page, ErrorClass::OutcomeUnknown),
        (503, "Service Unavailable", "", ErrorClass::OutcomeUnknown),
        (504, "Gateway Time-out", page, ErrorClass::OutcomeUnknown),
        (200, "OK", page, ErrorClass::OutcomeUnknown),
        (200, "OK", "{\"data\":{\"vers", ErrorClass::OutcomeUnknown),
        (200, "OK", "", ErrorClass::OutcomeUnknown),
        (200, "OK", "[]", ErrorClass::OutcomeUnknown),
        (200, "OK", "{\"status\":\"up\"}", ErrorClass::OutcomeUnknown),
        (204, "No Content", "", ErrorClass::OutcomeUnknown),
    ] {
        let bench = bench(
            1,
            [
                answer(status, reason, body),
                answer(status, reason, body),
                answer(status, reason, body),
            ],
        );
        let (node, vmid) = ("pve1".parse().unwrap(), "101".parse().unwrap());
        let read = bench.client.vm_config(&node, vmid).await.unwrap_err();
        assert_eq!(read.kind, Kind::SomethingInFront, "{status} {body}");
        assert_eq!(read.class, ErrorClass::Transient, "{status} {body}");
        let exists = bench.client.vmid_state(vmid).await.unwrap_err();
        assert_eq!(exists.kind, Kind::SomethingInFront, "{status} {body}");
        let start = bench.client.start(&node, vmid).unwrap();
        let written = start.send().await.unwrap_err();
        assert_eq!(written.kind, Kind::SomethingInFront, "{status} {body}");
        assert_eq!(written.class, on_mutation, "{status} {body}");
    }
}

#[tokio::test]
async fn an_answer_of_the_wrong_shape_is_internal_and_of_a_mutation_an_unknown_outcome() {
    let (node, vmid) = ("pve1".parse().unwrap(), "101".parse().unwrap());
    for body in [
        "{\"data\":7}",
        "{\"data\":[]}",
        "{\"data\":{\"name\":\"x\"}}",
    ] {
        let bench = bench(1, [answer(200, "OK", body), answer(200, "OK", body)]);
        let read = bench.client.vm_config(&node, vmid).await.unwrap_err();
        assert_eq!(
            (read.kind, read.class),
            (Kind::UnexpectedAnswer, ErrorClass::Internal)
        );
        let start = bench.client.start(&node, vmid).unwrap();
        let written = start.send().await.unwrap_err();
        assert_eq!(
            (written.kind, written.class),
            (Kind::UnexpectedAnswer, ErrorClass::OutcomeUnknown)
        );
    }
}

#[tokio::test]
async fn b134_x9_x10_only_595_proves_that_a_mutation_had_no_effect() {
    let (node, vmid) = ("pve1".parse().unwrap(), "101".parse().unwrap());
    for (status, reason, class, sent) in [
        (595, "No route to host", ErrorClass::Transient, false),
        (
            596,
            "tls_process_server_certificate: certificate verify failed",
            ErrorClass::Transient,
            false,
        ),
        (596, "Broken pipe", ErrorClass::OutcomeUnknown, true),
        (
            596,
            "Connection timed out",
            ErrorClass::OutcomeUnknown,
            true,
        ),
        (597, "", ErrorClass::OutcomeUnknown, true),
        (
            599,
            "Too many redirections",
            ErrorClass::OutcomeUnknown,
            true,
        ),
    ] {
        let bench = bench(1, [answer(status, reason, "")]);
        let failure = bench
            .client
            .start(&node, vmid)
            .unwrap()
            .send()
            .await
            .unwrap_err();
        assert_eq!(
            (failure.class, failure.sent),
            (class, sent),
            "{status} {reason}"
        );
    }
}

#[tokio::test]
async fn b141_a_certificate_between_cluster_nodes_is_not_taken_for_ours() {
    let reason = "error:0A000086:SSL routines::certificate verify failed";
    let bench = bench(1, [answer(596, reason, "")]);
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(failure.kind, Kind::NodeUnreachable);
    assert!(
        failure.said.ends_with("(between cluster nodes)"),
        "{failure}"
    );
}

#[test]
fn b69_a_missing_volume_is_never_a_missing_guest() {
    for text in [
        "volume 'store:100/vm-100-disk-0.qcow2' does not exist",
        "clone failed: volume 'vmdata:106/vm-106-disk-0.qcow2' does not exist",
    ] {
        assert_eq!(errors::kind_of_task(text), Kind::VolumeMissing, "{text}");
    }
    assert_eq!(
        errors::kind_of_task("storage 'nope' does not exist"),
        Kind::StorageMissing
    );
}

#[test]
fn x12_a_refusal_means_the_same_as_a_message_and_as_an_exit_status() {
    for (text, kind) in [
        (
            "can't remove VM 190 - protection mode enabled",
            Kind::ProtectionMode,
        ),
        ("VM 103 is running - destroy failed", Kind::IsRunning),
        (
            "unable to remove VM 128 - used in HA resources and purge parameter not set.",
            Kind::HaManaged,
        ),
        (
            "Configuration file 'nodes/pve1/qemu-server/121.conf' does not exist",
            Kind::NotExistOnNode,
        ),
    ] {
        assert_eq!(errors::kind_of_task(text), kind, "{text}");
        let none = BTreeMap::new();
        assert_eq!(errors::kind_of_answer(500, text, &none), kind, "{text}");
    }
}
