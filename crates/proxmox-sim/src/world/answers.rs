//! What the API says: data, or a refusal with its exact status, reason phrase and body.

use crate::exchange::Answer;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

/// A successful answer.
#[derive(Debug)]
pub(super) struct Reply {
    /// What stands under `data`.
    pub(super) data: Value,
    /// Further keys beside it, such as `total`.
    pub(super) beside: Map<String, Value>,
    /// How long it takes, where it is not the usual time.
    pub(super) after: Option<Duration>,
}

impl From<Value> for Reply {
    fn from(data: Value) -> Self {
        Self {
            data,
            beside: Map::new(),
            after: None,
        }
    }
}

impl Reply {
    pub(super) fn with_total(data: Value, total: usize) -> Self {
        let mut reply = Self::from(data);
        reply.beside.insert("total".to_owned(), total.into());
        reply
    }
}

/// What stands in the body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    /// `{"data":null,"message":…}`, with `errors` where there are any.
    Json {
        message: String,
        errors: BTreeMap<String, String>,
    },
    Plain(String),
    Empty,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) reason: String,
    body: Body,
    /// How long it takes, where it is not the usual time.
    pub(super) after: Option<Duration>,
}

/// What a route answers.
pub(super) type Outcome = Result<Reply, Refusal>;

impl Refusal {
    fn json(status: u16, message: &str) -> Self {
        Self {
            status,
            reason: message.lines().next().unwrap_or_default().to_owned(),
            body: Body::Json {
                message: message.to_owned(),
                errors: BTreeMap::new(),
            },
            after: None,
        }
    }

    /// A plain `die`: 500 with the text, which gets its newline here.
    pub(super) fn died(text: impl AsRef<str>) -> Self {
        Self::json(500, &format!("{}\n", text.as_ref()))
    }

    /// 400, naming parameters.
    pub(super) fn parameters(errors: BTreeMap<String, String>) -> Self {
        let mut refusal = Self::json(400, "Parameter verification failed.\n");
        if let Body::Json { errors: slot, .. } = &mut refusal.body {
            *slot = errors;
        }
        refusal
    }

    /// 400, naming one parameter.
    pub(super) fn parameter(name: &str, text: impl Into<String>) -> Self {
        Self::parameters([(name.to_owned(), text.into())].into())
    }

    /// 403; `what` is path and privileges, or nothing for the bare text.
    pub(super) fn forbidden(what: &str) -> Self {
        let text = if what.is_empty() {
            "Permission check failed\n".to_owned()
        } else {
            format!("Permission check failed ({what})\n")
        };
        Self::json(403, &text)
    }

    /// 501 for a method that the path does not have.
    pub(super) fn not_implemented(method: &str, path: &str) -> Self {
        Self::json(501, &format!("Method '{method} {path}' not implemented"))
    }

    /// 401 from behind the API, with a body, as the login itself answers.
    pub(super) fn wrong_password() -> Self {
        Self::json(401, "authentication failure\n")
    }

    /// An answer without a body.
    pub(super) fn empty(status: u16, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            body: Body::Empty,
            after: None,
        }
    }

    /// An answer whose body is the text, without a content type.
    pub(super) fn plain(status: u16, text: &str) -> Self {
        Self {
            status,
            reason: text.lines().next().unwrap_or_default().to_owned(),
            body: Body::Plain(text.to_owned()),
            after: None,
        }
    }

    /// The same answer so much later.
    pub(super) fn after(mut self, after: Duration) -> Self {
        self.after = Some(after);
        self
    }

    /// Status and text as one line, the way a task ends when such an exception reaches it.
    pub(super) fn as_task_error(&self) -> String {
        match (&self.body, self.status) {
            (Body::Json { errors, .. }, 400) => {
                let named: Vec<String> = errors
                    .iter()
                    .map(|(name, error)| format!(" {name}: {error}"))
                    .collect();
                let text = format!("400 Parameter verification failed.{}", named.concat());
                text.replace('\n', " ").trim_end().to_owned()
            }
            (Body::Json { .. }, 403) => format!("403 {}", self.reason),
            (Body::Json { message, .. }, _) => message.trim_end().replace('\n', " "),
            _ => self.reason.clone(),
        }
    }

    /// As it goes over the wire.
    pub(super) fn answer(self, usual: Duration) -> Answer {
        let after = self.after.unwrap_or(usual);
        let (headers, body) = match self.body {
            Body::Json { message, errors } => {
                let mut body = json!({"data": null, "message": message});
                if !errors.is_empty() {
                    body["errors"] = json!(errors);
                }
                (json_headers(), body.to_string().into_bytes())
            }
            Body::Plain(text) => (server_headers(), text.into_bytes()),
            Body::Empty => (server_headers(), Vec::new()),
        };
        Answer::Response {
            status: self.status,
            reason: self.reason,
            headers,
            body,
            after,
            close: true,
        }
    }
}

fn server_headers() -> Vec<(String, String)> {
    vec![("server".to_owned(), "pve-api-daemon/3.0".to_owned())]
}

fn json_headers() -> Vec<(String, String)> {
    [
        ("cache-control", "max-age=0"),
        ("content-type", "application/json;charset=UTF-8"),
        ("pragma", "no-cache"),
        ("server", "pve-api-daemon/3.0"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// A successful answer as it goes over the wire.
pub(super) fn answer(reply: Reply, usual: Duration, close: bool) -> Answer {
    let mut body = reply.beside;
    body.insert("data".to_owned(), reply.data);
    Answer::Response {
        status: 200,
        reason: "OK".to_owned(),
        headers: json_headers(),
        body: Value::Object(body).to_string().into_bytes(),
        after: reply.after.unwrap_or(usual),
        close,
    }
}
