//! What a caller is told of its own privileges.

use super::{World, access::Caller, answers::Outcome, params::Params};
use serde_json::{Map, Value, json};

impl World {
    /// `GET /access/permissions`.
    pub(super) fn get_permissions(&self, caller: &Caller, params: &Params) -> Outcome {
        let who = match params.text("userid") {
            Some(other) if other != caller.id => {
                self.access.need(caller, "/access", &["Sys.Audit"], self)?;
                other.to_owned()
            }
            _ => caller.id.clone(),
        };
        let paths = match params.text("path") {
            Some(path) => [path.to_owned()].into(),
            None => self.access.told_paths(&who),
        };
        let told: Map<String, Value> = paths
            .into_iter()
            .filter_map(|path| {
                let got = self.access.privileges(&who, &path, self);
                let shown: Map<String, Value> = got
                    .into_iter()
                    .map(|(name, propagates)| (name, json!(u8::from(propagates))))
                    .collect();
                (!shown.is_empty()).then_some((path, Value::Object(shown)))
            })
            .collect();
        Ok(Value::Object(told).into())
    }
}
