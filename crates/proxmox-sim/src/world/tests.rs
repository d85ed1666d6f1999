//! The world as a client meets it.

mod access;
mod faults;
mod life;

use super::*;
use crate::exchange::Answer;
use serde_json::{Value, json};

const SECRET: &str = "a3b1c5d7-0000-4000-8000-000000000001";

/// A client of the first node that reads its answers whole and then goes on.
struct Client {
    world: World,
    now: Duration,
    token: String,
}

/// An answer as compared.
#[derive(Debug)]
struct Got {
    status: u16,
    reason: String,
    body: Value,
}

impl Client {
    fn new(setup: Setup) -> Self {
        Self {
            world: World::new(setup),
            now: Duration::from_mins(1),
            token: format!("op@pve!t1={SECRET}"),
        }
    }

    fn answer(&mut self, method: &str, path: &str, body: &[u8], kind: &str) -> Answer {
        let request = Request {
            node: "pve1".to_owned(),
            method: method.to_owned(),
            target: format!("/api2/json{path}"),
            headers: vec![
                (
                    "authorization".to_owned(),
                    format!("PVEAPIToken={}", self.token),
                ),
                ("content-type".to_owned(), kind.to_owned()),
            ],
            body: body.to_vec(),
        };
        let answer = self.world.step(&request, self.now);
        if let Answer::Response { after, .. } | Answer::Dropped { after } = &answer {
            self.now += *after;
        }
        answer
    }

    fn send(&mut self, method: &str, path: &str, form: &[(&str, &str)]) -> Got {
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
        };
        let body: Vec<String> = form
            .iter()
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect();
        let body = body.join("&");
        let kind = "application/x-www-form-urlencoded";
        match self.answer(method, path, body.as_bytes(), kind) {
            Answer::Response {
                status,
                reason,
                body,
                ..
            } => Got {
                status,
                reason,
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            },
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    fn get(&mut self, path: &str) -> Got {
        self.send("GET", path, &[])
    }

    fn data(&mut self, path: &str) -> Value {
        let got = self.get(path);
        assert_eq!(got.status, 200, "{path}: {got:?}");
        got.body["data"].clone()
    }

    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    fn control(&mut self, control: Value) -> Value {
        let control = serde_json::from_value(control).unwrap();
        self.world.control(control, self.now).unwrap()
    }

    /// Sends a mutation that begins a task, waits for its end, and answers how it ended.
    fn task(&mut self, method: &str, path: &str, form: &[(&str, &str)]) -> String {
        let got = self.send(method, path, form);
        assert_eq!(got.status, 200, "{path}: {got:?}");
        let upid = got.body["data"].as_str().unwrap().to_owned();
        self.end_of(&upid)
    }

    fn end_of(&mut self, upid: &str) -> String {
        for _ in 0..10_000 {
            let status = self.data(&format!("/nodes/pve1/tasks/{upid}/status"));
            if let Some(exit) = status["exitstatus"].as_str() {
                return exit.to_owned();
            }
            self.pass(0.05);
        }
        panic!("{upid} never ended");
    }

    fn clone_to(&mut self, vmid: u32) -> String {
        self.task(
            "POST",
            "/nodes/pve1/qemu/9000/clone",
            &[
                ("newid", &vmid.to_string()),
                ("full", "1"),
                ("storage", "local-lvm"),
                ("name", "px"),
                ("description", "for people\nmark 1"),
            ],
        )
    }

    fn upload(&mut self, name: &str, data: &str) -> String {
        let body = format!(
            "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n{data}\r\n--B--\r\n"
        );
        let path = "/nodes/pve1/storage/proxy-seeds/upload";
        let answer = self.answer(
            "POST",
            path,
            body.as_bytes(),
            "multipart/form-data; boundary=B",
        );
        let Answer::Response {
            status: 200, body, ..
        } = answer
        else {
            panic!("{answer:?}");
        };
        let body: Value = serde_json::from_slice(&body).unwrap();
        let upid = body["data"].as_str().unwrap().to_owned();
        self.end_of(&upid)
    }
}

fn client() -> Client {
    Client::new(Setup::default())
}
