//! Where cloud-init's reader of YAML is stricter than ours: it would drop the whole text, with
//! no more than a warning in the machine's log.

use egress_core::finding::Finding;
use serde_saphyr::granit_parser::{ScalarStyle, Scanner, StrInput, TokenType};
use std::{collections::BTreeSet, ops::Range};

/// The first thing that PyYAML does not read, in a text that we do.
pub(super) fn unread(text: &str) -> Option<Finding> {
    let mut anchors = BTreeSet::new();
    // Characters of scalars in which a tab is an ordinary character.
    let mut free: Vec<Range<usize>> = Vec::new();
    // A text that does not scan was refused before.
    for token in Scanner::new(StrInput::new(text)).map_while(Result::ok) {
        let (span, token) = token.into_parts();
        match token {
            TokenType::Anchor(name) if !anchors.insert(name.to_string()) => {
                return Some(Finding::new(
                    "",
                    format!("line {}, &{name}", span.start.line()),
                    "the anchor has this name a second time, which cloud-init does not read",
                    "name it otherwise",
                ));
            }
            TokenType::Scalar(style, _) if style != ScalarStyle::Plain => {
                free.push(span.start.index()..span.end.index());
            }
            _ => {}
        }
    }
    let line = tab_between_tokens(text, &free)?;
    Some(Finding::new(
        "",
        format!("line {line}"),
        "holds a tab outside quotes and blocks, which cloud-init does not read",
        "use spaces",
    ))
}

/// The line, from 1, of the first tab that is neither in `free` nor in a comment.
fn tab_between_tokens(text: &str, free: &[Range<usize>]) -> Option<usize> {
    let mut free = free.iter().peekable();
    let (mut line, mut before, mut in_comment) = (1, '\n', false);
    for (index, character) in text.chars().enumerate() {
        while free.next_if(|range| range.end <= index).is_some() {}
        let is_free = free.peek().is_some_and(|range| range.contains(&index));
        match character {
            '\n' => (line, in_comment) = (line + 1, false),
            _ if is_free => {}
            '#' if matches!(before, '\n' | ' ') => in_comment = true,
            '\t' if !in_comment => return Some(line),
            _ => {}
        }
        before = character;
    }
    None
}
