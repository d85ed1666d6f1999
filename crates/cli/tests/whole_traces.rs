//! Traces of an engine without a cluster: what they hold, and what becomes of them where nobody
//! takes them.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{net::TcpListener, process::Command};
use support::{PROGRAM, Running, Site, collector::Collector};

fn said(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn engine(site: &Site, otlp: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["standalone", "--config"]).arg(site.config());
    command.arg("--manifests").arg(site.manifests());
    command.arg("--state-dir").arg(site.state());
    command.arg(otlp).env("OTEL_BSP_SCHEDULE_DELAY", "200");
    command
}

#[test]
fn a_failed_call_is_a_failed_span_with_its_class() {
    let site = Site::new("traced", 30_300);
    let collector = Collector::start();
    // Somebody else has the only port.
    let held = TcpListener::bind("127.0.0.1:30300").expect("a free port");
    let text = std::fs::read_to_string(site.config()).expect("a configuration");
    let one = text.replace("to: 30399", "to: 30300");
    assert_ne!(one, text);
    std::fs::write(site.config(), one).expect("written");
    site.declare("a");
    let flag = format!("--otlp={}/", collector.url());
    let mut engine = engine(&site, &flag);
    // Traces do not hang on what is logged.
    engine.arg("--log-level=error");
    let _engine = Running::spawn(&mut engine, site.path("engine.log"));
    let call = collector.wait_span("a failed claim", |s| {
        s.attribute("operation") == "claim" && s.failed
    });
    assert_eq!(call.attribute("class"), "Capacity");
    assert_eq!(call.attribute("error.type"), "Capacity");
    drop(held);
}

#[test]
fn an_engine_whose_collector_does_not_answer_works_on_and_says_so_once() {
    let site = Site::new("untraced", 30_400);
    site.declare("a");
    let mut engine = engine(&site, "--otlp=http://127.0.0.1:1");
    let mut engine = Running::spawn(&mut engine, site.path("engine.log"));
    site.wait_serving(&["a"]);
    support::wait_for("a word on the collector", || {
        let printed = engine.printed();
        if printed.contains("traces are not taken at http://127.0.0.1:1/v1/traces: ") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    assert!(engine.stop(Signal::TERM).success(), "{}", engine.printed());
    assert_eq!(engine.printed().matches("traces are not taken").count(), 1);
}

#[test]
fn an_endpoint_that_is_none_refuses_the_start_with_exit_code_2() {
    let site = Site::new("refused", 30_500);
    for (flag, variable, told) in [
        (
            "--otlp=collector",
            ("A", "a"),
            "--otlp: collector: is no URL of http or https: ",
        ),
        (
            "--otlp",
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x"),
            "OTEL_EXPORTER_OTLP_ENDPOINT: ftp://x: is no URL of http or https: ",
        ),
        (
            "--otlp",
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            "OTEL_EXPORTER_OTLP_PROTOCOL: grpc: is not spoken: use http/protobuf",
        ),
    ] {
        let mut command = engine(&site, flag);
        let output = command
            .env(variable.0, variable.1)
            .output()
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{flag}");
        assert!(
            said(&output.stderr).starts_with(told),
            "{}",
            said(&output.stderr)
        );
    }
    let mut command = engine(&site, "--otlp=https://localhost");
    let nothing = site.path("none.pem");
    let output = command
        .env("OTEL_EXPORTER_OTLP_CERTIFICATE", &nothing)
        .output();
    let text = said(&output.expect("it starts").stderr);
    let told = format!("OTEL_EXPORTER_OTLP_CERTIFICATE: {}: ", nothing.display());
    assert!(text.starts_with(&told), "{text}");
}
