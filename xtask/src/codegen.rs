//! `cargo xtask codegen`: the pages of `docs/` that the program itself writes.

use crate::{Stop, run};
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// The pages, by the name that the hidden command `egress-proxies docs` knows.
const PAGES: &[&str] = &["cli", "metrics", "config", "events"];

/// Writes the pages, or compares them.
pub(crate) fn codegen(root: &Path, args: &[String]) -> Result<(), Stop> {
    let check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Stop::Usage("codegen takes `--check` or nothing".into())),
    };
    // All crates together, so that this build and the one of the tests share what they can.
    let program = run::built(
        run::cargo(root)
            .args(["build", "--quiet", "--workspace", "--all-features"])
            .args(["--bin", "egress-proxies"]),
        "egress-proxies",
    )?;
    let mut stale = 0;
    for page in PAGES {
        let path = format!("docs/{page}.md");
        let mut print = Command::new(&program);
        let wanted = run::text(
            print
                .args(["docs", page])
                .current_dir(root)
                .stdin(Stdio::null()),
        )?;
        let found = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        if found == wanted {
            println!("{path}: as generated");
        } else if check {
            stale += 1;
            println!("{path}:{}", first_difference(&found, &wanted));
        } else {
            run::write(root, &path, &wanted)?;
            println!("{path}: written");
        }
    }
    if stale == 0 {
        return Ok(());
    }
    println!(
        "codegen: run `cargo xtask codegen` and keep what it writes; pages that differ: {stale}"
    );
    Err(Stop::Failed)
}

/// `line: holds ..., generated is ...` of the first line that differs.
fn first_difference(found: &str, wanted: &str) -> String {
    let mut pairs = (1..).zip(found.split('\n').map(Some).chain(std::iter::repeat(None)));
    let mut wanted_lines = wanted.split('\n').map(Some).chain(std::iter::repeat(None));
    let (number, holds, generated) = loop {
        let generated = wanted_lines.next().flatten();
        match pairs.next() {
            Some((number, holds)) if holds != generated || holds.is_none() => {
                break (number, holds, generated);
            }
            Some(_) => {}
            None => break (0, None, generated),
        }
    };
    let shown = |line: Option<&str>| line.map_or("no line".to_owned(), |line| format!("`{line}`"));
    format!(
        "{number}: holds {}, generated is {}",
        shown(holds),
        shown(generated)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_shown() {
        assert_eq!(
            first_difference("a\nb\n", "a\nc\n"),
            "2: holds `b`, generated is `c`"
        );
        assert_eq!(
            first_difference("a", "a\nc"),
            "2: holds no line, generated is `c`"
        );
        assert_eq!(
            first_difference("a\nb", "a"),
            "2: holds `b`, generated is no line"
        );
        assert_eq!(first_difference("", "a"), "1: holds ``, generated is `a`");
    }
}
