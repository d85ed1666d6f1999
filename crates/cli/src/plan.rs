//! `plan`: what the operator would do next with each Proxy of a cluster.

use crate::{
    config::PayloadArguments,
    failure::Failure,
    get::{Output, columns, pretty, print},
    operator::{File, client},
};
use egress_core::plan::Waiting;
use egress_engine::HttpProber;
use egress_operator::preview::{Foreseen, preview};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc};

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file of the operator.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The kubeconfig of the cluster. Default: `KUBECONFIG`, `~/.kube/config`, or the service
    /// account of the pod.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Only the Proxies of this namespace. Default: all.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// How it is printed.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    payload: PayloadArguments,
}

const HEAD: [&str; 6] = ["NAMESPACE", "NAME", "PHASE", "NEXT", "WAITS FOR", "MESSAGE"];

/// Looks at cluster and hypervisors, and prints.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let client = client(arguments.kubeconfig.as_deref()).await?;
    let source = File {
        path: arguments.config.clone(),
        payload: arguments.payload.clone(),
    };
    let namespace = arguments.namespace.as_deref();
    let foreseen = preview(client, namespace, Arc::new(source), Arc::new(HttpProber))
        .await
        .map_err(Failure::refused_lines)?;
    let steps: Vec<Step> = foreseen.iter().map(Step::of).collect();
    print(&match arguments.output {
        Output::Json => {
            let all: Vec<Value> = steps.iter().map(Step::json).collect();
            pretty(&json!(all))
        }
        Output::Table => {
            let rows: Vec<[String; HEAD.len()]> = steps.into_iter().map(Step::row).collect();
            columns(HEAD, &rows, usize::MAX)
        }
    });
    Ok(())
}

/// The next step of one Proxy, in words.
struct Step {
    namespace: String,
    name: String,
    phase: String,
    next: Vec<String>,
    waits_for: Option<String>,
    message: String,
}

impl Step {
    fn of(foreseen: &Foreseen) -> Self {
        let step = Self {
            namespace: foreseen.id.namespace().to_owned(),
            name: foreseen.id.name().to_owned(),
            phase: "Unknown".to_owned(),
            next: Vec::new(),
            waits_for: None,
            message: String::new(),
        };
        match &foreseen.next {
            None => Self {
                phase: "Gone".to_owned(),
                message: "nothing of ours is left in it: it waits for other finalizers".to_owned(),
                ..step
            },
            Some(Err(error)) => Self {
                message: error.store().chain(),
                ..step
            },
            Some(Ok(outcome)) => {
                let waiting = outcome.plan.waiting.as_ref().map(Waiting::told);
                let (waits_for, message) = waiting.unzip();
                Self {
                    phase: outcome.plan.phase.as_str().to_owned(),
                    next: outcome
                        .plan
                        .actions
                        .iter()
                        .map(ToString::to_string)
                        .collect(),
                    waits_for: waits_for.map(|reason| reason.to_string()),
                    message: message.unwrap_or_default(),
                    ..step
                }
            }
        }
    }

    fn json(&self) -> Value {
        json!({
            "namespace": self.namespace, "name": self.name, "phase": self.phase,
            "next": self.next, "waitsFor": self.waits_for, "message": self.message,
        })
    }

    fn row(self) -> [String; HEAD.len()] {
        let next = if self.next.is_empty() {
            "-".to_owned()
        } else {
            self.next.join(", ")
        };
        let waits_for = self.waits_for.unwrap_or_else(|| "-".to_owned());
        [
            self.namespace,
            self.name,
            self.phase,
            next,
            waits_for,
            self.message,
        ]
    }
}
