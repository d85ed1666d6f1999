//! One series replayed in its world.

use crate::{
    clock,
    compare::Comparable,
    rows::{Row, encoded, form, upid_in},
    worlds::{Step, Worlds},
};
use egress_proxmox_sim::{
    exchange::{Answer, Request},
    http,
    world::World,
};
use std::{collections::BTreeMap, time::Duration};

/// A row that was replayed.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Its id.
    pub(crate) id: String,
    /// The parts that differ, as (part, recorded, ours).
    pub(crate) differences: Vec<(String, String, String)>,
    /// What was asked and what came, for people.
    pub(crate) told: String,
}

/// What the first node is called.
const NODE: &str = "pve1";

struct Lab<'a> {
    worlds: &'a Worlds,
    world: World,
    /// Recorded UPIDs and ours.
    upids: BTreeMap<String, String>,
    trouble: Vec<String>,
}

/// Replays the rows of one series in its own world; those that are left out give only their time.
pub(crate) fn replay(
    worlds: &Worlds,
    rows: &[&Row],
    left_out: impl Fn(&Row) -> bool,
) -> Vec<Replayed> {
    let series = rows[0].series();
    let mut lab = Lab {
        worlds,
        world: World::new(worlds.start(series)),
        upids: BTreeMap::new(),
        trouble: Vec::new(),
    };
    let mut done = Vec::new();
    for (row, time) in rows.iter().zip(clock::times(rows, worlds)) {
        let shift = worlds.shift(series);
        for before in worlds.before(&row.id) {
            let time = time.saturating_sub(Duration::from_secs_f64(before.earlier));
            for step in &before.steps {
                lab.take(step, time, shift);
            }
        }
        if !left_out(row) {
            done.push(lab.ask(row, time + shift));
        }
    }
    done
}

impl Lab<'_> {
    fn take(&mut self, step: &Step, now: Duration, shift: Duration) {
        match step {
            Step::Control(control) => {
                let outcome = serde_json::from_value(control.clone())
                    .map_err(|error| error.to_string())
                    .and_then(|control| self.world.control(control, now + shift).map(drop));
                if let Err(error) = outcome {
                    self.trouble.push(format!("{control}: {error}"));
                }
            }
            Step::Request { send, upid } => {
                let mut headers = vec![(
                    "authorization".to_owned(),
                    self.worlds.credential("T1").expect("a credential"),
                )];
                let body = send.params.as_ref().map(form).unwrap_or_default();
                if send.params.is_some() {
                    headers.push((
                        "content-type".into(),
                        "application/x-www-form-urlencoded".into(),
                    ));
                }
                let mut target = send.path.clone();
                for (recorded, ours) in &self.upids {
                    target = target.replace(&format!("{{{recorded}}}"), &encoded(ours));
                }
                let request = Request {
                    node: NODE.into(),
                    method: send.method.clone(),
                    target,
                    headers,
                    body: body.into_bytes(),
                };
                let at = step.began().map_or(now, |began| began.min(now));
                match self.world.step(&request, at + shift) {
                    Answer::Response {
                        status: 200, body, ..
                    } => {
                        let body = String::from_utf8_lossy(&body).into_owned();
                        if let (Some(recorded), Some(ours)) = (upid, upid_in(&body)) {
                            self.upids.insert(recorded.clone(), ours.to_owned());
                        }
                    }
                    other => self
                        .trouble
                        .push(format!("{} {}: {other:?}", send.method, send.path)),
                }
            }
        }
    }

    fn ask(&mut self, row: &Row, now: Duration) -> Replayed {
        let credential = row
            .token
            .as_deref()
            .and_then(|token| self.worlds.credential(token));
        let mut request = self.worlds.omissions.request(row, NODE, credential);
        for (recorded, ours) in &self.upids {
            request.target = request
                .target
                .replace(&encoded(recorded), &encoded(ours))
                .replace(recorded, ours);
        }
        let answer = if self.worlds.omissions.plain_http.contains(&row.id) {
            http::redirect(&request)
        } else {
            http::refuse(&request).unwrap_or_else(|| self.world.step(&request, now))
        };
        let path = row.request.path.split('?').next().unwrap_or_default();
        let recorded_body = row
            .response
            .body
            .as_deref()
            .map(|body| self.worlds.omissions.with_digests(body))
            .unwrap_or_default();
        let recorded = Comparable::new(
            row.response.status.map(|status| {
                (
                    status,
                    row.response.reason.as_deref().unwrap_or_default(),
                    row.response.headers.clone(),
                    recorded_body.as_str(),
                )
            }),
            path,
        );
        let mut shown = format!("{answer:?}");
        let ours = match &answer {
            Answer::Response {
                status,
                reason,
                headers,
                body,
                close,
                ..
            } => {
                let body = String::from_utf8_lossy(body);
                shown = format!("{status} {reason} {headers:?} close={close}\n    {body}");
                if let (Some(recorded), Some(ours)) = (row.begun(), upid_in(&body)) {
                    self.upids.insert(recorded.to_owned(), ours.to_owned());
                }
                let mut headers: BTreeMap<String, String> = headers
                    .iter()
                    .map(|(name, value)| (name.to_lowercase(), value.clone()))
                    .collect();
                headers.insert(
                    "connection".into(),
                    if *close { "close" } else { "Keep-Alive" }.into(),
                );
                Comparable::new(Some((*status, reason, headers, &body)), path)
            }
            _ => Comparable::new(None, path),
        };
        let mut differences = recorded.differences(&ours);
        for trouble in self.trouble.drain(..) {
            differences.push(("start world".into(), String::new(), trouble));
        }
        let sent = String::from_utf8_lossy(&request.body);
        let told = format!(
            "{} {} at {:.3} s: {} {}\n  sent {}\n  recorded {:?} {}\n    {}\n  ours {shown}\n",
            row.id,
            row.name,
            now.as_secs_f64(),
            request.method,
            crate::rows::decoded(&row.request.path),
            sent.chars().take(300).collect::<String>(),
            row.response.status,
            row.response.reason.as_deref().unwrap_or_default(),
            row.response.body.as_deref().unwrap_or_default(),
        );
        Replayed {
            id: row.id.clone(),
            differences,
            told,
        }
    }
}
