//! The rows that no call of the product can meet, by rule.

use crate::rows::{Row, data, decoded};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// One rule: a row that fits every field it names is left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    reason: String,
    method: Option<String>,
    /// The path without its query; `*` is any part of one segment, `**` any of several.
    path: Option<String>,
    /// A part of the query; empty: no `poolid`.
    query: Option<String>,
    /// The type of the task in the path.
    task: Option<Vec<String>>,
    /// A part of the answer, or of any answer about the same task.
    answer: Option<String>,
}

/// The checked-in rules.
pub(crate) struct Exclusions {
    rules: Vec<Rule>,
    /// For each text of a rule, the tasks whose answers hold it.
    tainted: BTreeMap<String, BTreeSet<String>>,
}

/// Whether a text fits a pattern in which `**` is anything and `*` anything but a slash.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(tail) = text.strip_prefix(head) else {
        return false;
    };
    let (rest, end) = match rest.strip_prefix('*') {
        Some(rest) => (rest, tail.len()),
        None => (rest, tail.find('/').unwrap_or(tail.len())),
    };
    (0..=end).any(|i| tail.is_char_boundary(i) && fits(rest, &tail[i..]))
}

fn task_of(row: &Row) -> Option<String> {
    row.begun().map(str::to_owned).or_else(|| row.asked())
}

impl Exclusions {
    /// The checked-in rules, and what they say about these rows.
    pub(crate) fn load(rows: &[Row]) -> Self {
        let rules: Vec<Rule> =
            serde_json::from_str(&data("exclusions.json")).expect("exclusions.json");
        let mut tainted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for text in rules.iter().filter_map(|rule| rule.answer.as_ref()) {
            let tasks = rows
                .iter()
                .filter(|row| {
                    row.response
                        .body
                        .as_deref()
                        .is_some_and(|body| body.contains(text))
                })
                .filter_map(task_of)
                .collect();
            tainted.insert(text.clone(), tasks);
        }
        Self { rules, tainted }
    }

    /// Why a row is left out.
    pub(crate) fn reason(&self, row: &Row) -> Option<&str> {
        let (path, query) = row
            .request
            .path
            .split_once('?')
            .unwrap_or((&row.request.path, ""));
        let path = decoded(path);
        self.rules
            .iter()
            .find(|rule| {
                rule.method
                    .as_ref()
                    .is_none_or(|method| *method == row.request.method)
                    && rule
                        .path
                        .as_ref()
                        .is_none_or(|pattern| fits(pattern, &path))
                    && rule.query.as_ref().is_none_or(|part| {
                        if part.is_empty() {
                            !query.contains("poolid=")
                        } else {
                            query.contains(part.as_str())
                        }
                    })
                    && rule.task.as_ref().is_none_or(|types| {
                        types.iter().any(|kind| path.contains(&format!(":{kind}:")))
                    })
                    && rule.answer.as_ref().is_none_or(|text| {
                        row.response
                            .body
                            .as_deref()
                            .is_some_and(|body| body.contains(text))
                            || task_of(row).is_some_and(|task| self.tainted[text].contains(&task))
                    })
            })
            .map(|rule| rule.reason.as_str())
    }

    /// The rules that leave out nothing: mistakes.
    pub(crate) fn idle(&self, rows: &[Row]) -> Vec<&str> {
        self.rules
            .iter()
            .map(|rule| rule.reason.as_str())
            .filter(|reason| !rows.iter().any(|row| self.reason(row) == Some(reason)))
            .collect()
    }
}
