//! `crds`: the custom resource definitions.

use crate::failure::Failure;
use egress_api::v1alpha1::cluster::crds;
use serde_json::Value;

/// Prints all definitions as YAML, one document each.
pub fn run() -> Result<(), Failure> {
    print!("{}", yaml()?);
    Ok(())
}

fn yaml() -> Result<String, Failure> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: false,
    };
    let mut text = String::new();
    for crd in crds() {
        text.push_str("---\n");
        let crd = whole_numbers(serde_json::to_value(crd).unwrap_or_default());
        serde_saphyr::to_fmt_writer_with_options(&mut text, &crd, options.clone())
            .map_err(|e| Failure::failed(format!("writing YAML: {e}")))?;
    }
    Ok(text)
}

/// Bounds are fractions in the type of a schema: `64.0`. All of ours are whole.
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 => (whole as i64).into(),
            _ => number.into(),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, field)| (name, whole_numbers(field)))
            .collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back_as_the_definitions() {
        let text = yaml().unwrap();
        let documents: Vec<&str> = text.split("---\n").skip(1).collect();
        assert_eq!(documents.len(), crds().len());
        for (document, crd) in documents.into_iter().zip(crds()) {
            let read: Value = serde_saphyr::from_str(document).unwrap();
            assert_eq!(read, whole_numbers(serde_json::to_value(&crd).unwrap()));
            assert!(!document.contains(".0\n"), "{document}");
        }
    }
}
