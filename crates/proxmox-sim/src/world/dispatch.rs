//! From a request to an answer: who asks, what for, and on which node it is done.

use super::{
    Daemon, DaemonState, Event, World,
    access::Caller,
    answers::{Outcome, Refusal, answer},
    params::Params,
    schema::Call,
    upload,
};
use crate::exchange::{Answer, Request};
use percent_encoding::percent_decode_str;
use std::time::Duration;

/// The largest body of a form or JSON, in bytes.
const LARGEST_BODY: usize = 512 * 1024;

impl Request {
    fn header(&self, wanted: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    }

    /// Whether it may change something.
    pub fn is_mutating(&self) -> bool {
        self.method != "GET"
    }
}

/// A request that was understood and let in.
struct Admitted<'a> {
    call: Call<'a>,
    caller: Caller,
    params: Params,
    file: Vec<u8>,
}

impl World {
    /// Takes a request and says what the client sees. `now` is the time since the world began
    /// and never goes back.
    pub fn step(&mut self, request: &Request, now: Duration) -> Answer {
        self.advance(now);
        let named;
        let request = if self.nodes.contains_key(&request.node) {
            request
        } else {
            named = Request {
                node: self.server_named(&request.node),
                ..request.clone()
            };
            &named
        };
        if let Some(answer) = self.way_to(request) {
            return answer;
        }
        if self.elsewhere.is_some() {
            if request.is_mutating() {
                self.note_mutation(request);
            }
            return match &mut self.elsewhere {
                Some(other) => other.step(request, now),
                None => Answer::Silence,
            };
        }
        if let Some(answer) = self.in_front(request) {
            return answer;
        }
        if self.is_odd_upload(request) {
            return Answer::Silence;
        }
        self.perhaps_lost(request)
    }

    /// The node that a client means: by its address, or the first one.
    fn server_named(&self, name: &str) -> String {
        let by_address = |node: &&super::NodeSetup| node.address == name;
        match self.setup.nodes.iter().find(by_address) {
            Some(node) => node.name.clone(),
            None => self.first_node(),
        }
    }

    /// The answer of the API itself.
    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        if request.is_mutating() {
            self.note_mutation(request);
        }
        let usual = self.pace.of(if request.is_mutating() {
            self.pace.t.mutation
        } else {
            self.pace.t.read
        });
        let uploads = request.target.contains("/upload");
        match self.outcome(request) {
            Ok(reply) => answer(reply, usual, uploads && request.is_mutating()),
            Err(refusal) => refusal.answer(usual),
        }
    }

    /// An upload that is no multipart body is taken and never answered.
    fn is_odd_upload(&self, request: &Request) -> bool {
        let path = request.target.split('?').next().unwrap_or_default();
        let kind = request.header("content-type").unwrap_or_default();
        let now = self.time_of_day(&request.node);
        request.method == "POST"
            && path.ends_with("/upload")
            && !kind.starts_with("multipart/form-data")
            && self.access.identify(&request.headers, now).is_ok()
    }

    fn note_mutation(&mut self, request: &Request) {
        let path = request.target.strip_prefix("/api2/json");
        let path = path.unwrap_or(&request.target);
        let form = request
            .header("content-type")
            .is_none_or(|kind| !kind.starts_with("multipart"));
        let body = if form && request.body.len() < 4096 {
            String::from_utf8_lossy(&request.body).into_owned()
        } else {
            String::new()
        };
        let line = format!("{} {path} {body}", request.method);
        self.mutations.push(line.trim_end().to_owned());
    }

    fn outcome(&mut self, request: &Request) -> Outcome {
        let admitted = self.admit(request)?;
        let server = &request.node;
        let target = admitted
            .params
            .text("node")
            .filter(|_| admitted.call.route.proxyto.is_some())
            .unwrap_or(server)
            .to_owned();
        self.reach(server, &target, admitted.call.route.protected == 1, request)?;
        let Admitted {
            call,
            caller,
            mut params,
            file,
        } = admitted;
        self.schema().check(call.route, &mut params)?;
        if let Some(outcome) = self.wait_for_lock(&call, &caller, &params, request) {
            return outcome;
        }
        let mut outcome = self.perform(call.name, &caller, &params, file, server);
        if call.route.protected == 1 {
            let after = match &mut outcome {
                Ok(reply) => &mut reply.after,
                Err(refusal) => &mut refusal.after,
            };
            *after = self.occupy_worker(&target, *after);
        }
        outcome
    }

    /// Finds out who asks for what, and whether it may.
    fn admit(&self, request: &Request) -> Result<Admitted<'static>, Refusal> {
        let method = request.method.as_str();
        if !matches!(method, "GET" | "POST" | "PUT" | "DELETE") {
            return Err(Refusal::empty(
                501,
                format!("method '{method}' not available"),
            ));
        }
        if matches!(method, "GET" | "DELETE") && !request.body.is_empty() {
            return Err(Refusal::plain(
                501,
                &format!("Unexpected content for method '{method}'"),
            ));
        }
        let (path, query) = match request.target.split_once('?') {
            Some((path, query)) => (path, query),
            None => (request.target.as_str(), ""),
        };
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let path = api_path(&path)?;
        if self.daemon(&request.node, Daemon::Pmxcfs) != DaemonState::Up {
            return Err(Refusal::empty(
                500,
                "RPCEnvironment init request failed: Unable to load access control list: Connection refused",
            ));
        }
        let found = self.schema().find(method, &path);
        let public = found.as_ref().is_some_and(|call| call.route.is_public());
        let now = self.time_of_day(&request.node);
        let late = self.pace.of(self.pace.t.refused_login);
        let caller = match self.access.identify(&request.headers, now) {
            Ok(caller) => Some(caller),
            Err(_) if public => None,
            Err(refusal) => return Err(refusal.after(late)),
        };
        let kind = request.header("content-type").unwrap_or_default();
        let multipart = kind.starts_with("multipart/form-data");
        let uploads = path.ends_with("/upload") && method == "POST";
        let mut params = Params::default();
        let mut file = Vec::new();
        if multipart && uploads {
            if let (Some(call), Some(caller)) = (&found, &caller) {
                let mut named = Params::default();
                for (name, value) in &call.path {
                    named.set(name, value.clone());
                }
                self.check_call(call, caller, &named)
                    .map_err(|refusal| Refusal::empty(403, refusal.reason).after(late))?;
            }
            let parsed = upload::parse(kind, &request.body)?;
            params = parsed.params;
            file = parsed.data;
        } else if !request.body.is_empty() {
            if request.body.len() > LARGEST_BODY {
                return Err(Refusal::plain(501, "for data too large"));
            }
            params = read_body(kind, &request.body)?;
        }
        params.overlay(Params::decode_form(query));
        let call = found.ok_or_else(|| Refusal::not_implemented(method, &path))?;
        for (name, value) in &call.path {
            let conflict = params.0.get(name).is_some_and(|given| given != value);
            if conflict {
                return Err(Refusal::parameter(
                    name,
                    "duplicate parameter (already defined in URI) with conflicting values!",
                ));
            }
            params.set(name, value.clone());
        }
        let Some(caller) = caller else {
            return Err(Refusal::wrong_password().after(late));
        };
        if !call.route.takes_tokens() {
            return Err(Refusal::forbidden(&format!(
                "URI '{path}' not available with API token, need proper ticket.\n"
            )));
        }
        self.check_call(&call, &caller, &params)?;
        Ok(Admitted {
            call,
            caller,
            params,
            file,
        })
    }

    fn check_call(&self, call: &Call<'_>, caller: &Caller, params: &Params) -> Result<(), Refusal> {
        match call.route.check() {
            Some(check) => self.access.check(caller, check, params, self),
            None => Ok(()),
        }
    }

    /// A PUT of a configuration waits for the machine's lock file inside the request.
    fn wait_for_lock(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        params: &Params,
        request: &Request,
    ) -> Option<Outcome> {
        if call.name != "PUT /nodes/{node}/qemu/{vmid}/config" {
            return None;
        }
        let node = params.text("node")?;
        let vmid: u32 = params.number("vmid")?;
        if self.machine_is_free(node, vmid) {
            return None;
        }
        if let Err(refusal) = self.clone().put_config(caller, params) {
            return Some(Err(refusal));
        }
        let wait = self.pace.t.lock_wait;
        let Some(at) = self.foresee_free(node, vmid, wait) else {
            let text = Self::lock_text(&Self::machine_lock(node, vmid));
            return Some(Err(Refusal::died(text).after(self.pace.of(wait))));
        };
        let after = at.saturating_sub(self.now) + self.pace.of(self.pace.t.mutation);
        let mut ahead = self.clone();
        ahead.advance(at);
        let outcome = ahead.put_config(caller, params);
        self.mutations.pop();
        self.schedule(at, Event::Late(Box::new(request.clone())));
        Some(match outcome {
            Ok(mut reply) => {
                reply.after = Some(after);
                Ok(reply)
            }
            Err(refusal) => Err(refusal.after(after)),
        })
    }

    /// A protected call holds one of three workers of its node for as long as it takes; one
    /// that finds none free waits.
    fn occupy_worker(&mut self, node: &str, after: Option<Duration>) -> Option<Duration> {
        let now = self.now;
        let worker = self.nodes.get_mut(node)?.workers.iter_mut().min()?;
        let begins = (*worker).max(now);
        let wait = begins.saturating_sub(now);
        let works = after.unwrap_or_default();
        *worker = begins + works;
        if wait.is_zero() {
            after
        } else {
            Some(wait + works)
        }
    }

    fn perform(
        &mut self,
        name: &str,
        caller: &Caller,
        params: &Params,
        file: Vec<u8>,
        server: &str,
    ) -> Outcome {
        let (method, path) = name.split_once(' ').unwrap_or_default();
        let on_machine = path.strip_prefix("/nodes/{node}/qemu/{vmid}");
        let on_storage = path.strip_prefix("/nodes/{node}/storage");
        if let Some(rest) = on_machine {
            return self.perform_on_machine(method, rest, caller, params);
        }
        if let Some(rest) = on_storage {
            return match (method, rest) {
                ("GET", "") => Ok(self.get_storages(caller, params)),
                ("GET", "/{storage}/status") => self.get_storage_status(params),
                ("GET", "/{storage}/content") => self.get_content(caller, params),
                ("GET", _) => self.get_volume(caller, params),
                ("DELETE", _) => self.delete_volume(caller, params),
                _ => {
                    let node = params.text("node").unwrap_or_default();
                    self.resolve(node)?;
                    self.post_upload(caller, params, server, file)
                }
            };
        }
        match (method, path) {
            ("GET", "/version" | "/nodes/{node}/version") => Ok(self.get_version()),
            ("GET", "/access/permissions") => self.get_permissions(caller, params),
            ("GET", "/cluster/resources") => Ok(self.get_resources(caller, params, server)),
            ("GET", "/cluster/nextid") => self.get_nextid(params),
            ("GET", "/cluster/status") => Ok(self.get_cluster_status(server)),
            ("GET", "/cluster/options") => Ok(self.get_options(caller)),
            ("GET", "/cluster/tasks") => Ok(self.get_cluster_tasks(caller)),
            ("GET", "/nodes") => Ok(self.get_nodes(caller, server)),
            ("GET", "/nodes/{node}/status") => Ok(self.get_node_status(params)),
            ("GET", "/nodes/{node}/time") => Ok(self.get_time(params)),
            ("GET", "/nodes/{node}/network") => Ok(self.get_network(caller, params)),
            ("GET", "/nodes/{node}/certificates/info") => Ok(self.get_certificates(params)),
            ("GET", "/nodes/{node}/qemu") => Ok(self.get_machines(caller, params)),
            ("POST", "/nodes/{node}/qemu") => {
                self.may_create(caller, params)?;
                self.post_create(caller, params)
            }
            ("GET", "/nodes/{node}/tasks") => Ok(self.get_tasks(caller, params)),
            ("DELETE", "/nodes/{node}/tasks/{upid}") => self.delete_task(caller, params),
            ("GET", "/nodes/{node}/tasks/{upid}/status") => self.get_task_status(caller, params),
            ("GET", "/nodes/{node}/tasks/{upid}/log") => self.get_task_log(caller, params),
            ("GET", "/pools") => self.get_pools(caller, params, server),
            ("PUT", "/pools") => self.put_pool(caller, params),
            ("GET", "/pools/{poolid}") => self.get_pool(caller, params, server),
            _ => Err(Refusal::not_implemented(method, path)),
        }
    }

    fn perform_on_machine(
        &mut self,
        method: &str,
        rest: &str,
        caller: &Caller,
        params: &Params,
    ) -> Outcome {
        if let Some(command) = rest.strip_prefix("/agent/") {
            return self.ask_agent(params, command);
        }
        match (method, rest) {
            ("DELETE", "") => self.destroy_machine(caller, params),
            ("GET", "/config") => self.get_config(params),
            ("PUT", "/config") => self.put_config(caller, params),
            ("POST", "/config") => self.post_config(caller, params),
            ("GET", "/pending") => self.get_pending(params),
            ("GET", "/snapshot") => self.get_snapshots(params),
            ("GET", "/cloudinit") => self.get_cloudinit(params),
            ("GET", "/status/current") => self.get_current(params),
            ("POST", "/status/start") => self.post_start(caller, params),
            ("POST", "/status/stop") => self.post_stop(caller, params),
            ("POST", "/status/shutdown") => self.post_shutdown(caller, params),
            ("POST", "/status/suspend") => self.post_change(caller, params, "suspend"),
            ("POST", "/status/resume") => self.post_change(caller, params, "resume"),
            ("POST", "/status/reset") => self.post_change(caller, params, "reset"),
            ("POST", "/clone") => self.clone_machine(caller, params),
            ("PUT", "/resize") => self.resize_disk(caller, params),
            ("POST", "/template") => self.post_template(caller, params),
            ("POST", "/agent") => {
                let command = params.text("command").unwrap_or_default().to_owned();
                self.ask_agent(params, &command)
            }
            _ => Err(Refusal::not_implemented(method, rest)),
        }
    }
}

/// The path below `/api2/json`, with single slashes and none at its end.
fn api_path(path: &str) -> Result<String, Refusal> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["api2", "json", rest @ ..] => Ok(format!("/{}", rest.join("/"))),
        ["api2", format, rest @ ..] => Err(Refusal::plain(
            501,
            &format!("no formatter for uri /{}, {format}", rest.join("/")),
        )),
        _ => Err(Refusal::plain(501, "no such uri")),
    }
}

fn read_body(kind: &str, body: &[u8]) -> Result<Params, Refusal> {
    let plain = kind.split(';').next().unwrap_or_default().trim();
    match plain {
        "application/json" => Params::decode_json(body),
        "" | "application/x-www-form-urlencoded" => {
            Ok(Params::decode_form(&String::from_utf8_lossy(body)))
        }
        _ => Err(Refusal::plain(
            506,
            &format!("upload 'Content-Type '{plain}' not implemented"),
        )),
    }
}
