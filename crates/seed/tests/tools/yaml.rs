//! The user's text as PyYAML reads it, beside our own reading.

use crate::{is_there, made, said};
use egress_core::machine::CloudConfig;
use egress_seed::{GuestAgent, Seed};

/// Texts on which readers of YAML 1.1 and 1.2 may differ.
const TRICKY: &[&str] = &[
    "a:\tb\n",
    "a: b\t# c\n",
    "a: b # c\td\n",
    "\t\na: 1\n",
    "a: b\tc\n",
    "a: 'b\tc'\n",
    "a: \"b\tc\"\n",
    "a: |\n  # b\n\n  all:\n  \tmake\tb # c\n \nb: >-\n  c\td\n",
    "a:\n- |\n  x:\ty\n- 'ä\t# \t'\n",
    "a: |\n  x\n\t\n",
    "a: b#\tc\n",
    "a:\n\tb: 1\n",
    "%YAML 1.2\n---\na: 1\n",
    "a: !foo x\n",
    "a: !!set {x, y}\n",
    "a: 2001-12-14\n",
    "a: @x\n",
    "? [a, b]\n: 1\n",
    "a: %x\n",
    "a: {b:c}\n",
    "a: [http://x:1/, b]\n",
    "a: 'x' y\n",
    "1: a\n",
    "~: a\n",
    "a: *b\n",
    "a: &x 1\nb: &x 2\nc: *x\n",
    "yes: 1\non: 2\n",
    "a: [1,\n2]\n",
    "a: {\nb: 1\n}\n",
    "a: \"x\ny\"\n",
    "a: |2\n    x\n",
    "a: !!python/unicode x\n",
    "a: !!float abc\n",
    "a: !!int abc\n",
    "a: .inf\n",
    "a: 1:30\n",
    "a: 1\n...\n",
    "---\na: 1\n",
    "a: 1\n---\n",
    "a: 1\n b: 2\n",
    "a: x\u{85}vendor_data: 1\n",
    "a: x\u{2028}vendor_data: 1\n",
    "a: x\u{2029}vendor_data: 1\n",
    "a: x\rvendor_data: 1\n",
    "a: !!binary /w==\n",
    "a:\n - ! x\n",
    "&a vendor_data: 1\n",
    "a: &a vendor_data\n*a : 1\n",
    "? vendor_data\n: 1\n",
    "!!str vendor_data: 1\n",
    "\"vendor\\x5fdata\": 1\n",
    "{\"vendor_data\": 1}\n",
    "x: &x {vendor_data: 1}\n<<: *x\n",
    "x: &x {vendor_data: 1}\n<<: [*x]\n",
    "a: 0o644\n",
    "a: \u{1f600}\n",
    "a: \u{7}\n",
];

/// How cloud-init's reader takes each text of a JSON list: `bad`, `off` where it finds the key
/// that turns our part off, else `good`.
const PYTHON_READS: &str = r##"
import json, sys, yaml
def taken(text):
    try:
        return "off" if "vendor_data" in yaml.safe_load("#cloud-config\n" + text) else "good"
    except Exception:
        return "bad"
print(json.dumps([taken(text) for text in json.loads(sys.argv[1])]))
"##;

#[test]
fn what_cloud_init_reads_otherwise_than_we_do_never_gets_past_us() {
    if !is_there("cloud-init", "cloud-init") {
        return;
    }
    let texts = serde_json::to_string(TRICKY).expect("JSON");
    let taken = said("/usr/bin/python3", &["-c", PYTHON_READS, &texts]);
    let taken: Vec<String> = serde_json::from_str(&taken).expect("JSON");
    let made = made(GuestAgent::Package, None);
    let mut differing = Vec::new();
    for (text, taken) in TRICKY.iter().zip(&taken) {
        let user_data = CloudConfig::new(format!("#cloud-config\n{text}"));
        let rendered = Seed {
            proxyd: &made.config,
            mac: None,
            guest_agent: GuestAgent::Package,
            payload: Some(&made.payload),
            user_data: Some(&user_data),
        }
        .render();
        if (taken == "good") != rendered.is_ok() {
            differing.push(format!("{text:?} is {taken} to cloud-init"));
        }
    }
    // Stricter than need be, and never needed: sets, a key `null`, infinity, bytes that are no text.
    assert_eq!(
        differing,
        [
            r#""a: !!set {x, y}\n" is good to cloud-init"#,
            r#""~: a\n" is good to cloud-init"#,
            r#""a: .inf\n" is good to cloud-init"#,
            r#""a: !!binary /w==\n" is good to cloud-init"#,
        ]
    );
}
