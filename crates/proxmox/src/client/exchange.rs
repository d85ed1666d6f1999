//! One call: from a value to the wire, over the servers of the cluster, and back to a value.

use super::{
    answers::Answered,
    call::{Call, Rendered},
    errors::{self, Effect},
    failure::{Failure, Kind},
    token::{Token, TokenFile},
    wire::{BaseUrl, Reuse, Wire, WireAnswer, WireError, WireRequest},
};
use http::{HeaderMap, HeaderValue, header};
use secrecy::ExposeSecret;
use serde_json::{Value, value::RawValue};
use std::{
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// How long a read may take: the slowest regular answer is an agent's, 3 s and 5 s (§9).
pub const READ_DEADLINE: Duration = Duration::from_secs(15);
/// How long a mutation may take: the API server itself gives up on a node after 30 s (§1.4).
pub const MUTATION_DEADLINE: Duration = Duration::from_secs(40);
/// How long an upload may take: the image travels whole before there is an answer.
pub const UPLOAD_DEADLINE: Duration = Duration::from_mins(5);

/// The longest text of an answer that a failure quotes, in characters.
const LONGEST_QUOTE: usize = 500;

/// Where the API is and what opens it.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The API servers of **one** cluster, in order of preference; at least one.
    pub urls: Vec<BaseUrl>,
    /// The file with `user@realm!id=secret`.
    pub token_file: PathBuf,
}

/// A client of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    deadline: Option<Duration>,
}

struct Shared {
    urls: Vec<BaseUrl>,
    /// The server that answered last.
    preferred: AtomicUsize,
    token: TokenFile,
    wire: Arc<dyn Wire>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("urls", &self.shared.urls)
            .finish_non_exhaustive()
    }
}

/// A call, its headers and the token they hold, ready to be written.
struct Ready {
    rendered: Rendered,
    headers: HeaderMap,
    body: hyper::body::Bytes,
    token: Token,
}

impl Client {
    /// A client that speaks over this wire.
    ///
    /// # Panics
    /// When `urls` is empty: the configuration refuses that before.
    pub fn new(config: ClientConfig, wire: Arc<dyn Wire>) -> Self {
        assert!(!config.urls.is_empty(), "a client needs a URL");
        Self {
            shared: Arc::new(Shared {
                urls: config.urls,
                preferred: AtomicUsize::new(0),
                token: TokenFile::new(config.token_file),
                wire,
            }),
            deadline: None,
        }
    }

    /// The same client, each of whose calls ends within this time.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            deadline: Some(deadline),
        }
    }

    /// The API servers.
    pub fn urls(&self) -> &[BaseUrl] {
        &self.shared.urls
    }

    /// What is wrong with the file of the authority, if anything is.
    pub(crate) fn ca_trouble(&self) -> Option<String> {
        self.shared.wire.ca_trouble()
    }

    /// Sends a read and reads its answer.
    pub(crate) async fn read<T: Answered>(&self, call: &Call) -> Result<T, Failure> {
        let ready = self.ready(call)?;
        let answer = self.send(&ready, READ_DEADLINE, None).await?;
        ready.parse(&answer)
    }

    /// Sends a read and gives the whole answer, whatever it says.
    pub(crate) async fn raw(&self, call: &Call) -> Result<WireAnswer, Failure> {
        let ready = self.ready(call)?;
        self.send(&ready, READ_DEADLINE, None).await
    }

    /// The secret of the token, to look for it in what must not hold it.
    pub(crate) fn secret_is_in(&self, text: &str) -> Result<bool, Failure> {
        let token = self.shared.token.read().map_err(|bad| Failure {
            class: errors::class_of(&Kind::TokenUnusable, Effect::Read, None),
            kind: Kind::TokenUnusable,
            status: None,
            asked: "token".to_owned(),
            said: bad.to_string(),
            sent: false,
        })?;
        Ok(token.redact(text) != text)
    }

    /// Makes a mutation ready: everything that needs a file or can be wrong happens here, so
    /// that nothing stands between the permit and [`Prepared::send`].
    pub(crate) fn prepare<T: Answered>(
        &self,
        call: &Call,
        deadline: Duration,
    ) -> Result<Prepared<T>, Failure> {
        Ok(Prepared {
            ready: self.ready(call)?,
            client: self.clone(),
            deadline,
            write_before: None,
            answer: PhantomData,
        })
    }

    fn ready(&self, call: &Call) -> Result<Ready, Failure> {
        let rendered = call.render();
        let token = self
            .shared
            .token
            .read()
            .map_err(|bad| local(&rendered, Kind::TokenUnusable, bad.to_string()))?;
        let (content_type, body) = rendered.body();
        let mut headers = HeaderMap::new();
        let mut authorization =
            HeaderValue::try_from(token.header().expose_secret()).map_err(|_| {
                local(
                    &rendered,
                    Kind::TokenUnusable,
                    "the token is no header value".to_owned(),
                )
            })?;
        authorization.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, authorization);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("egress-proxies/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(content_type) = content_type {
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::try_from(content_type).map_err(|_| {
                    local(
                        &rendered,
                        Kind::UnexpectedAnswer,
                        "the content type is no header value".to_owned(),
                    )
                })?,
            );
        }
        Ok(Ready {
            rendered,
            headers,
            body,
            token,
        })
    }

    /// Tries the servers in turn. A mutation goes to the next one only after a proof that
    /// nothing was written.
    async fn send(
        &self,
        ready: &Ready,
        default_deadline: Duration,
        write_before: Option<Instant>,
    ) -> Result<WireAnswer, Failure> {
        let urls = &self.shared.urls;
        let first = self.shared.preferred.load(Ordering::Relaxed) % urls.len();
        let end = Instant::now() + self.deadline.unwrap_or(default_deadline);
        let mut last = None;
        for turn in 0..urls.len() {
            let index = (first + turn) % urls.len();
            let now = Instant::now();
            if now >= end {
                break;
            }
            let left = u32::try_from(urls.len() - turn).unwrap_or(1);
            // A read leaves time for the servers after this one; a mutation that was
            // written must be waited for.
            let deadline = match ready.rendered.reuse() {
                Reuse::KeepAlive => now + (end - now) / left,
                Reuse::Fresh => end,
            };
            let request = WireRequest {
                base: urls[index].clone(),
                method: ready.rendered.method.clone(),
                target: ready.rendered.target(),
                headers: ready.headers.clone(),
                body: ready.body.clone(),
                reuse: ready.rendered.reuse(),
                deadline,
                write_before,
            };
            let sent = tokio::time::timeout_at(deadline, self.shared.wire.send(request)).await;
            let trouble = match sent {
                Ok(Ok(answer)) => {
                    self.shared.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(trouble)) => trouble,
                Err(_) => WireError::CutOff {
                    why: format!("no answer within {:.1} s", (deadline - now).as_secs_f64()),
                },
            };
            let may_repeat = match trouble {
                WireError::CutOff { .. } => ready.rendered.reuse() == Reuse::KeepAlive,
                _ => true,
            };
            tracing::debug!(url = %urls[index], %trouble, "no answer from an API server");
            last = Some(ready.cut(&urls[index], trouble));
            if !may_repeat {
                break;
            }
        }
        Err(last.unwrap_or_else(|| {
            local(
                &ready.rendered,
                Kind::NotSent,
                "no time was left to send it".to_owned(),
            )
        }))
    }
}

/// A failure before anything was written.
fn local(rendered: &Rendered, kind: Kind, said: String) -> Failure {
    Failure {
        class: errors::class_of(&kind, effect(rendered), None),
        kind,
        status: None,
        asked: asked(rendered),
        said,
        sent: false,
    }
}

fn asked(rendered: &Rendered) -> String {
    format!("{} {}", rendered.method, rendered.readable_path())
}

fn effect(rendered: &Rendered) -> Effect {
    match rendered.reuse() {
        Reuse::KeepAlive => Effect::Read,
        Reuse::Fresh => Effect::Mutation,
    }
}

impl Ready {
    fn cut(&self, base: &BaseUrl, trouble: WireError) -> Failure {
        let said = format!(
            "{base}: {}",
            one_line(&self.token.redact(&trouble.to_string()))
        );
        let (kind, sent) = match trouble {
            WireError::NotSent { .. } => (Kind::NotSent, false),
            WireError::CutOff { .. } => (Kind::CutOff, true),
            WireError::Certificate(trouble) => (Kind::CertificateInvalid(Box::new(trouble)), false),
            WireError::BadCa { .. } => (Kind::CaUnusable, false),
        };
        Failure {
            sent,
            ..local(&self.rendered, kind, said)
        }
    }

    fn failure(&self, kind: Kind, status: u16, said: &str) -> Failure {
        Failure {
            class: errors::class_of(&kind, effect(&self.rendered), Some(status)),
            // A code of 595 proves that the node was never reached.
            sent: !matches!(kind, Kind::NodeUnreachable),
            kind,
            status: Some(status),
            asked: asked(&self.rendered),
            said: one_line(&self.token.redact(said)),
        }
    }

    /// The value in a success, or what the answer means otherwise.
    fn parse<T: Answered>(&self, answer: &WireAnswer) -> Result<T, Failure> {
        let data = self.data(answer)?;
        T::read_text(data).map_err(|misfit| {
            self.failure(
                Kind::UnexpectedAnswer,
                answer.status,
                &format!("the answer has not the shape it should have: {misfit}"),
            )
        })
    }

    fn data<'a>(&self, answer: &'a WireAnswer) -> Result<&'a RawValue, Failure> {
        #[derive(serde::Deserialize)]
        struct Success<'a> {
            #[serde(borrow)]
            data: &'a RawValue,
        }
        if (200..300).contains(&answer.status) {
            return match serde_json::from_slice::<Success<'_>>(&answer.body) {
                Ok(success) => Ok(success.data),
                Err(_) => Err(self.in_front(answer, "an answer that is not one of the API")),
            };
        }
        let json = serde_json::from_slice::<Value>(&answer.body).ok();
        let object = json.as_ref().and_then(Value::as_object);
        let html = answer.body.trim_ascii_start().starts_with(b"<");
        if html {
            return Err(self.in_front(answer, "a page instead of an answer of the API"));
        }
        let (text, fields) = message(answer, object);
        let text = self.token.redact(&text);
        let fields: BTreeMap<String, String> = fields
            .into_iter()
            .map(|(field, said)| (field, self.token.redact(&said)))
            .collect();
        let kind = errors::kind_of_answer(answer.status, &text, &fields);
        let text = match kind {
            Kind::NodeUnreachable => format!("{text} (between cluster nodes)"),
            _ => text,
        };
        let said = fields.iter().fold(text, |said, (field, text)| {
            format!("{said} {field}: {text};")
        });
        Err(match kind {
            Kind::SomethingInFront => self.in_front(answer, &said),
            kind => self.failure(kind, answer.status, said.trim_end_matches(';')),
        })
    }

    fn in_front(&self, answer: &WireAnswer, said: &str) -> Failure {
        self.failure(
            Kind::SomethingInFront,
            answer.status,
            &format!(
                "{said} (something in front of Proxmox VE answered: {} {})",
                answer.status, answer.reason
            ),
        )
    }
}

/// The text of an error answer: the body's `message`, or the reason phrase (F1); and what it
/// says about each parameter.
fn message(
    answer: &WireAnswer,
    object: Option<&serde_json::Map<String, Value>>,
) -> (String, BTreeMap<String, String>) {
    let text = object
        .and_then(|o| o.get("message"))
        .and_then(Value::as_str)
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| answer.reason.trim());
    let fields = object
        .and_then(|o| o.get("errors"))
        .and_then(Value::as_object)
        .map(|errors| {
            errors
                .iter()
                .filter_map(|(key, said)| Some((key.clone(), said.as_str()?.trim().to_owned())))
                .collect()
        })
        .unwrap_or_default();
    (text.to_owned(), fields)
}

fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= LONGEST_QUOTE {
        return words;
    }
    words.chars().take(LONGEST_QUOTE).chain(['…']).collect()
}

/// A mutation that waits for its permit.
#[must_use = "nothing is sent before `send`"]
pub struct Prepared<T> {
    client: Client,
    ready: Ready,
    deadline: Duration,
    write_before: Option<Instant>,
    answer: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Prepared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prepared")
            .field(&asked(&self.ready.rendered))
            .finish()
    }
}

impl<T: Answered> Prepared<T> {
    /// Method and path, for texts about it.
    pub fn asked(&self) -> String {
        asked(&self.ready.rendered)
    }
    /// Not to be written after this moment, even if the connection is only ready then:
    /// [`Kind::NotSent`].
    pub const fn write_before(mut self, moment: Instant) -> Self {
        self.write_before = Some(moment);
        self
    }
    /// Sends it, once.
    pub async fn send(self) -> Result<T, Failure> {
        let answer = self
            .client
            .send(&self.ready, self.deadline, self.write_before)
            .await?;
        self.ready.parse(&answer)
    }
}
