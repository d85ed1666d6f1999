//! Standalone mode on libvirt: the whole product with real virtual machines, whose proxies and
//! agents come from their seeds.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{fs, thread, time::Duration};
use support::{
    Site,
    libvirt::{Ground, wait_long},
    manifest,
};

#[test]
fn three_virtual_machines_serve_through_kills_of_the_engine_and_leave_nothing() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let began = ground.inventory();
    let before = ground.domains();
    let site = Site::new("kvm2", 28_800);
    let text = format!(
        "installation: {}\nproviders: [{}]\n",
        site.installation,
        ground.block("here", &ground.tiny, "")
    );
    fs::write(site.config(), text).expect("written");
    let folder = ground.payload_dir(&site.path("payload"));
    let arguments = ["--payload-dir", &folder];
    let names = ["a", "b", "c"];
    for name in names {
        let machine = "machine: {cpus: 1, memoryMiB: 128, diskGiB: 1}";
        site.write(name, &manifest(name, &format!("provider: here, {machine}")));
    }
    let mut engine = site.start_with(&arguments);
    // In the middle of volumes, definitions and starts.
    for pause in [60, 250, 700] {
        thread::sleep(Duration::from_millis(pause));
        engine.stop(Signal::KILL);
        assert!(ground.domains().len() <= before.len() + names.len());
        engine = site.start_with(&arguments);
    }
    let page = ground.page();
    for name in names {
        wait_long("proxy that serves", || {
            let told = site.condition(name, "Serving");
            if told.starts_with("True") {
                return Ok(());
            }
            Err(format!("{told}\n{}", site.table()))
        });
        let (status, text) = site.through(name, &page);
        assert_eq!(status, 200, "{text}");
        let proxy = site.proxy(name).expect("shown");
        let endpoint = proxy["status"]["endpoint"].as_str().expect("an endpoint");
        let own = endpoint.rsplit_once(':').expect("a port").0;
        assert!(text.contains(own), "{text} is not from {own}");
    }
    assert_eq!(ground.domains().len(), before.len() + names.len());
    wait_long("seal of every machine", || {
        let volumes = ground.volumes();
        if volumes.iter().any(|name| name.contains(".iso")) {
            return Err(format!("{volumes:?}"));
        }
        Ok(())
    });

    for name in names {
        site.undeclare(name);
    }
    wait_long("word that all may go", || {
        match site.ask(&["prune"]).status.code() {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    thread::sleep(Duration::from_millis(300));
    engine.stop(Signal::KILL);
    let _engine = site.start_with(&arguments);
    site.ask(&["prune"]);
    wait_long("end of all of it", || {
        let left = ground.left(&began);
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("{left:?}\n{}", site.table()))
    });
    wait_long("end of the records", || {
        let proxies = site.proxies();
        proxies
            .is_empty()
            .then_some(())
            .ok_or(format!("{proxies:?}"))
    });
}
