//! What is told of tasks: one, its log, and lists of them.

use super::Task;
use crate::world::{
    World,
    access::Caller,
    answers::{Outcome, Refusal, Reply},
    params::Params,
    schema::split_list,
};
use serde_json::{Value, json};

impl World {
    fn sees_task(
        &self,
        caller: &Caller,
        user: &str,
        node: &str,
        privilege: &str,
    ) -> Result<(), Refusal> {
        let owner = user.split('!').next().unwrap_or_default();
        if caller.id == user || caller.id == owner {
            return Ok(());
        }
        self.access
            .need(caller, &format!("/nodes/{node}"), &[privilege], self)
    }

    pub(in crate::world) fn get_task_status(&self, caller: &Caller, params: &Params) -> Outcome {
        let upid = Upid::parse(params)?;
        self.sees_task(caller, &upid.user, upid.node(params), "Sys.Audit")?;
        let task = self
            .find_task(params)
            .ok_or_else(|| Refusal::parameter("upid", "no such task"))?;
        let mut shown = task.shown();
        match &task.ended {
            None => shown["status"] = json!("running"),
            Some((exit, _)) => {
                shown["status"] = json!("stopped");
                shown["exitstatus"] = json!(exit);
            }
        }
        Ok(shown.into())
    }

    pub(in crate::world) fn get_task_log(&self, caller: &Caller, params: &Params) -> Outcome {
        let upid = Upid::parse(params)?;
        self.sees_task(caller, &upid.user, upid.node(params), "Sys.Audit")?;
        let empty = ["no content".to_owned()];
        let missing = ["unable to open file - No such file or directory".to_owned()];
        let lines: &[String] = match self.find_task(params) {
            None => &missing,
            Some(task) if task.log.is_empty() => &empty,
            Some(task) => &task.log,
        };
        let start = params.number("start").unwrap_or(0_usize);
        let limit = match params.number("limit").unwrap_or(50_usize) {
            0 => usize::MAX,
            limit => limit,
        };
        let rows: Vec<Value> = lines
            .iter()
            .enumerate()
            .skip(start)
            .take(limit)
            .map(|(at, line)| json!({"n": at + 1, "t": line}))
            .collect();
        Ok(Reply::with_total(rows.into(), lines.len()))
    }

    pub(in crate::world) fn delete_task(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let upid = Upid::parse(params)?;
        self.sees_task(caller, &upid.user, upid.node(params), "Sys.Modify")?;
        let id = params
            .text("upid")
            .and_then(|upid| self.tasks.by_upid.get(upid))
            .copied()
            .ok_or_else(|| Refusal::parameter("upid", "no such task"))?;
        self.interrupt_task(id);
        Ok(Value::Null.into())
    }

    fn find_task(&self, params: &Params) -> Option<&Task> {
        let id = self.tasks.by_upid.get(params.text("upid")?)?;
        self.tasks
            .get(*id)
            .filter(|task| params.text("node") == Some(task.node.as_str()))
    }

    pub(in crate::world) fn get_tasks(&self, caller: &Caller, params: &Params) -> Reply {
        let node = params.text("node").unwrap_or_default();
        let source = params.text("source").unwrap_or("archive");
        let auditor = self
            .access
            .has(caller, &format!("/nodes/{node}"), "Sys.Audit", self);
        let fits = |task: &&Task| {
            let owner = task.user.split('!').next().unwrap_or_default();
            let exit = task.ended.as_ref().map(|(exit, _)| exit.as_str());
            (auditor || caller.id == task.user || caller.id == owner)
                && match source {
                    "active" => exit.is_none(),
                    "archive" => exit.is_some(),
                    _ => true,
                }
                && params.text("vmid").is_none_or(|vmid| task.id == vmid)
                && params
                    .text("typefilter")
                    .is_none_or(|kind| task.kind == kind)
                && params
                    .text("userfilter")
                    .is_none_or(|user| task.user.contains(user))
                && params
                    .number("since")
                    .is_none_or(|since| task.starttime >= since)
                && params
                    .number("until")
                    .is_none_or(|until| task.starttime <= until)
                && (!params.flag("errors") || exit.is_some_and(|exit| exit != "OK"))
                && params.text("statusfilter").is_none_or(|wanted| {
                    let is = match exit {
                        Some("OK") => "ok",
                        Some(exit) if exit.starts_with("WARNINGS") => "warning",
                        Some("unexpected status") => "unknown",
                        Some(_) => "error",
                        None => "",
                    };
                    split_list(wanted).any(|it| it == is)
                })
        };
        let on_node = self
            .tasks
            .all
            .values()
            .rev()
            .filter(|task| task.node == node);
        let mut found: Vec<&Task> = on_node.filter(fits).collect();
        found.sort_by_key(|task| task.ended.is_some());
        let start = params.number("start").unwrap_or(0_usize);
        let limit = match params.number("limit").unwrap_or(50_usize) {
            0 => usize::MAX,
            limit => limit,
        };
        let rows: Vec<Value> = found
            .iter()
            .skip(start)
            .take(limit)
            .map(|task| task.listed())
            .collect();
        Reply::with_total(rows.into(), found.len())
    }

    /// The tasks of all nodes that the caller sees: only its own user's, and tokens are not
    /// their user here.
    pub(in crate::world) fn get_cluster_tasks(&self, caller: &Caller) -> Reply {
        let auditor = self.access.has(caller, "/", "Sys.Audit", self);
        let mut rows: Vec<Value> = Vec::new();
        for task in self.tasks.all.values().rev() {
            if rows.len() >= 25 {
                break;
            }
            let owner = task.user.split('!').next().unwrap_or_default();
            if !auditor && caller.id != owner {
                continue;
            }
            let mut row = task.listed();
            if let Some(fields) = row.as_object_mut() {
                fields.remove("pid");
                fields.remove("pstart");
                if task.ended.is_some() {
                    fields.insert("saved".to_owned(), json!("1"));
                } else {
                    fields.remove("status");
                }
            }
            rows.push(row);
        }
        Value::Array(rows).into()
    }
}

impl Task {
    /// Whether it is of this type and id.
    pub(in crate::world) fn is(&self, kind: &str, id: &str) -> bool {
        self.kind == kind && self.id == id
    }

    /// The fields that every answer has.
    fn shown(&self) -> Value {
        let mut shown = json!({
            "upid": self.upid, "node": self.node, "pid": self.pid, "pstart": self.pstart,
            "starttime": self.starttime, "type": self.kind, "id": self.id,
        });
        match self.user.split_once('!') {
            Some((user, token)) => {
                shown["user"] = json!(user);
                shown["tokenid"] = json!(token);
            }
            None => shown["user"] = json!(self.user),
        }
        shown
    }

    fn listed(&self) -> Value {
        let mut row = self.shown();
        match &self.ended {
            None => row["status"] = json!("RUNNING"),
            Some((exit, time)) => {
                row["status"] = json!(exit);
                row["endtime"] = json!(time);
            }
        }
        row
    }
}

/// A UPID from a path.
struct Upid {
    node: String,
    user: String,
}

impl Upid {
    fn parse(params: &Params) -> Result<Self, Refusal> {
        let text = params.text("upid").unwrap_or_default();
        let parts: Vec<&str> = text.split(':').collect();
        let hex = |text: &str| {
            (8..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        match parts.as_slice() {
            ["UPID", node, pid, pstart, start, kind, _, user, ""]
                if hex(pid)
                    && hex(pstart)
                    && hex(start)
                    && !kind.is_empty()
                    && !node.is_empty() =>
            {
                Ok(Self {
                    node: (*node).to_owned(),
                    user: (*user).to_owned(),
                })
            }
            _ => Err(Refusal::parameter("upid", "unable to parse worker upid")),
        }
    }

    /// The node whose auditors may see it: that of the request, which is where files are read.
    fn node<'a>(&'a self, params: &'a Params) -> &'a str {
        params.text("node").unwrap_or(&self.node)
    }
}
