//! Who may use whom, and what the crates without I/O, clock and async must not pull in.

use super::Finding;
use cargo_metadata::{DependencyKind, Metadata, PackageId};
use std::collections::{BTreeMap, BTreeSet};

/// Every crate of the ceiling, and which of ours it may use; folder names.
const TABLE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("api", &["core"]),
    ("seed", &["core"]),
    ("provider", &["core"]),
    ("proxmox", &["core", "provider", "seed"]),
    ("proxmox-sim", &[]),
    ("kvm2", &["core", "provider", "seed"]),
    ("local", &["core", "provider"]),
    ("engine", &["core", "provider"]),
    ("operator", &["core", "provider", "engine", "api"]),
    ("proxyd", &["core"]),
    ("gateway", &["core", "proxyd"]),
    ("cli", EVERYTHING_BUT_DOORS),
    ("simtest", EVERYTHING_BUT_DOORS),
    ("xtask", &[]),
];

const EVERYTHING_BUT_DOORS: &[&str] = &[
    "core",
    "api",
    "seed",
    "provider",
    "proxmox",
    "proxmox-sim",
    "kvm2",
    "local",
    "engine",
    "operator",
    "proxyd",
    "gateway",
];

/// Nothing uses these, in tests neither.
const USED_BY_NOBODY: &[&str] = &["simtest", "cli", "xtask"];

/// Words and decisions: no I/O, no clock, no async.
const PURE: &[&str] = &["core", "api", "seed"];

/// What a pure crate must not reach, however far down.
const IMPURE: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "mio",
    "async-trait",
    "futures-util",
    "kube-client",
    "hyper",
    "reqwest",
    "axum",
    "rustls",
    "notify",
    "rustix",
    "tempfile",
    "tracing",
    "prometheus-client",
];

/// What a pure crate must not name itself; further down it may be a feature somebody else asked for.
const RANDOM: &[&str] = &["rand", "getrandom", "fastrand"];

/// A crate of ours.
pub(crate) struct Crate {
    /// Folder: `core`.
    folder: String,
    /// Package: `egress-core`.
    package: String,
    manifest: String,
    /// Whether the manifest takes the lints of the workspace.
    lints: Lints,
    /// What it uses, ours and others', by package name.
    uses: Vec<(String, DependencyKind)>,
    /// All packages it reaches without those of tests.
    reaches: BTreeSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lints {
    OfTheWorkspace,
    Own,
}

impl Crate {
    /// All crates of the workspace.
    pub(crate) fn read(metadata: &Metadata) -> Vec<Self> {
        let names: BTreeMap<&PackageId, &str> = metadata
            .packages
            .iter()
            .map(|package| (&package.id, package.name.as_str()))
            .collect();
        let next = normal_edges(metadata);
        metadata
            .workspace_packages()
            .into_iter()
            .map(|package| {
                let manifest = package.manifest_path.as_str();
                let folder = package
                    .manifest_path
                    .parent()
                    .and_then(|folder| folder.file_name());
                let text = std::fs::read_to_string(manifest).unwrap_or_default();
                let shared = text.contains("[lints]\nworkspace = true");
                Self {
                    folder: folder.unwrap_or_default().to_owned(),
                    package: package.name.to_string(),
                    manifest: manifest
                        .strip_prefix(metadata.workspace_root.as_str())
                        .unwrap_or(manifest)
                        .trim_start_matches('/')
                        .to_owned(),
                    lints: if shared {
                        Lints::OfTheWorkspace
                    } else {
                        Lints::Own
                    },
                    uses: package
                        .dependencies
                        .iter()
                        .map(|d| (d.name.clone(), d.kind))
                        .collect(),
                    reaches: reach(&package.id, &next)
                        .into_iter()
                        .filter_map(|id| names.get(id).map(|name| (*name).to_owned()))
                        .collect(),
                }
            })
            .collect()
    }
}

type Edges<'a> = BTreeMap<&'a PackageId, Vec<&'a PackageId>>;

fn normal_edges(metadata: &Metadata) -> Edges<'_> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    nodes
        .map(|node| {
            let normal = node.deps.iter().filter(|dep| {
                dep.dep_kinds
                    .iter()
                    .any(|kind| kind.kind == DependencyKind::Normal)
            });
            (&node.id, normal.map(|dep| &dep.pkg).collect())
        })
        .collect()
}

fn reach<'a>(from: &'a PackageId, next: &Edges<'a>) -> BTreeSet<&'a PackageId> {
    let mut seen = BTreeSet::new();
    let mut ahead = vec![from];
    while let Some(id) = ahead.pop() {
        for further in next.get(id).into_iter().flatten() {
            if seen.insert(*further) {
                ahead.push(further);
            }
        }
    }
    seen
}

/// Findings about the crates' manifests.
pub(crate) fn check(crates: &[Crate]) -> Vec<Finding> {
    let ours: BTreeMap<&str, &str> = crates
        .iter()
        .map(|krate| (krate.package.as_str(), krate.folder.as_str()))
        .collect();
    crates
        .iter()
        .flat_map(|krate| check_one(krate, &ours))
        .collect()
}

fn check_one(krate: &Crate, ours: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let folder = krate.folder.as_str();
    let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == folder) else {
        return vec![Finding::new(
            &krate.manifest,
            0,
            format!("crate `{folder}` is not in the dependency table"),
            "make it a module, or give it a row in xtask/src/tidy/dependencies.rs and a reason in docs/decisions",
        )];
    };
    let mut findings = Vec::new();
    let mut report = |problem: String, remedy: &str| {
        findings.push(Finding::new(&krate.manifest, 0, problem, remedy));
    };
    if folder != "xtask" && krate.package != format!("egress-{folder}") {
        report(
            format!("package `{}` in folder `{folder}`", krate.package),
            "name the package `egress-` and the folder",
        );
    }
    if krate.lints == Lints::Own {
        report(
            "does not take the workspace's lints".into(),
            "add `[lints]` with `workspace = true`",
        );
    }
    for (used, kind) in &krate.uses {
        let Some(used) = ours.get(used.as_str()).filter(|used| **used != folder) else {
            continue;
        };
        if USED_BY_NOBODY.contains(used) {
            report(
                format!("`{folder}` uses `{used}`"),
                "nothing uses it: move what is needed below it",
            );
        } else if *kind != DependencyKind::Development && !allowed.contains(used) {
            report(
                format!("`{folder}` may not use `{used}`"),
                "turn the dependency round, or pass the value in; ARCHITECTURE.md says who may use whom",
            );
        }
    }
    if PURE.contains(&folder) {
        let named = |name: &str| {
            krate
                .uses
                .iter()
                .any(|(used, kind)| used == name && *kind != DependencyKind::Development)
        };
        let reached = IMPURE
            .iter()
            .filter(|name| named(name) || krate.reaches.contains(**name));
        for impure in reached.chain(RANDOM.iter().filter(|name| named(name))) {
            report(
                format!("`{folder}` reaches `{impure}`"),
                "this floor has no I/O, no clock, no randomness and no async: move the code up a floor",
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(folder: &str, uses: &[&str]) -> Crate {
        Crate {
            folder: folder.to_owned(),
            package: format!("egress-{folder}"),
            manifest: format!("crates/{folder}/Cargo.toml"),
            lints: Lints::OfTheWorkspace,
            uses: uses
                .iter()
                .map(|used| ((*used).to_owned(), DependencyKind::Normal))
                .collect(),
            reaches: BTreeSet::new(),
        }
    }

    fn problems(crates: &[Crate]) -> Vec<String> {
        check(crates)
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    #[test]
    fn a_use_within_the_table_is_silent() {
        let crates = [
            krate("core", &["serde"]),
            krate("provider", &["egress-core", "tokio"]),
        ];
        assert!(check(&crates).is_empty());
    }

    #[test]
    fn a_use_against_the_table_is_found() {
        let crates = [krate("core", &["egress-provider"]), krate("provider", &[])];
        assert_eq!(problems(&crates), ["`core` may not use `provider`"]);
    }

    #[test]
    fn a_test_may_use_more_but_never_the_doors() {
        let mut local = krate("local", &["egress-engine", "egress-simtest"]);
        for (_, kind) in &mut local.uses {
            *kind = DependencyKind::Development;
        }
        let crates = [local, krate("engine", &[]), krate("simtest", &[])];
        assert_eq!(problems(&crates), ["`local` uses `simtest`"]);
    }

    #[test]
    fn a_crate_may_turn_on_its_own_features_in_its_tests() {
        assert!(check(&[krate("provider", &["egress-provider"])]).is_empty());
    }

    #[test]
    fn a_crate_outside_the_table_is_found() {
        assert_eq!(
            problems(&[krate("utils", &[])]),
            ["crate `utils` is not in the dependency table"]
        );
    }

    #[test]
    fn async_far_below_core_is_found() {
        let mut core = krate("core", &["rand"]);
        core.reaches.insert("tokio".into());
        assert_eq!(
            problems(&[core]),
            ["`core` reaches `tokio`", "`core` reaches `rand`"]
        );
    }

    #[test]
    fn a_wrong_package_name_and_own_lints_are_found() {
        let mut api = krate("api", &[]);
        api.package = "api".into();
        api.lints = Lints::Own;
        assert_eq!(
            problems(&[api]),
            [
                "package `api` in folder `api`",
                "does not take the workspace's lints"
            ]
        );
    }

    #[test]
    fn every_name_in_the_table_has_a_row() {
        for (folder, allowed) in TABLE {
            for used in *allowed {
                assert!(
                    TABLE.iter().any(|(name, _)| name == used),
                    "{folder} → {used}"
                );
            }
        }
    }

    #[test]
    fn the_workspace_itself_is_read_with_its_names_and_uses() {
        let metadata = crate::run::metadata(&crate::root()).expect("cargo metadata");
        let crates = Crate::read(&metadata);
        let provider = crates
            .iter()
            .find(|krate| krate.folder == "provider")
            .expect("provider");
        assert!(provider.uses.iter().any(|(name, _)| name == "egress-core"));
        assert!(provider.reaches.contains("egress-core"));
        assert_eq!(provider.manifest, "crates/provider/Cargo.toml");
    }
}
