//! Resource pools.

use super::{
    World,
    access::{Caller, Membership},
    answers::{Outcome, Refusal},
    params::Params,
};
use serde_json::{Value, json};

impl Membership for World {
    fn pool_of_guest(&self, vmid: &str) -> Option<&str> {
        self.pool_of(vmid.parse().ok()?)
    }

    fn pool_of_storage(&self, storage: &str) -> Option<&str> {
        self.pool_storages
            .iter()
            .find(|(_, storages)| storages.contains(storage))
            .map(|(pool, _)| pool.as_str())
    }
}

impl World {
    /// The pool of a guest that exists.
    pub(super) fn pool_of(&self, vmid: u32) -> Option<&str> {
        self.pools
            .iter()
            .find(|(_, members)| members.contains(&vmid))
            .map(|(pool, _)| pool.as_str())
    }

    /// `GET /pools`, with or without a name.
    pub(super) fn get_pools(&mut self, caller: &Caller, params: &Params, server: &str) -> Outcome {
        if let Some(pool) = params.text("poolid") {
            self.access
                .need(caller, &format!("/pool/{pool}"), &["Pool.Audit"], self)?;
            let mut found = self.pool(caller, pool, server)?;
            found["poolid"] = json!(pool);
            return Ok(json!([found]).into());
        }
        let rows: Vec<Value> = self
            .pools
            .keys()
            .filter(|pool| {
                self.access
                    .has(caller, &format!("/pool/{pool}"), "Pool.Audit", self)
            })
            .map(|pool| json!({"poolid": pool}))
            .collect();
        Ok(Value::Array(rows).into())
    }

    /// `GET /pools/{poolid}`.
    pub(super) fn get_pool(&mut self, caller: &Caller, params: &Params, server: &str) -> Outcome {
        let pool = params.text("poolid").unwrap_or_default().to_owned();
        let mut found = self.pool(caller, &pool, server)?;
        found["poolid"] = json!(pool);
        Ok(found.into())
    }

    fn pool(&mut self, caller: &Caller, pool: &str, server: &str) -> Result<Value, Refusal> {
        let Some(members) = self.pools.get(pool).cloned() else {
            return Err(Refusal::died(format!("pool '{pool}' does not exist")));
        };
        let all = self.get_resources(caller, &Params::default(), server).data;
        let storages = self.pool_storages.get(pool).cloned().unwrap_or_default();
        let rows: Vec<Value> = all
            .as_array()
            .into_iter()
            .flatten()
            .filter(|row| {
                let guest = row["vmid"]
                    .as_u64()
                    .and_then(|vmid| u32::try_from(vmid).ok())
                    .is_some_and(|vmid| members.contains(&vmid));
                let storage = row["type"] == "storage"
                    && row["storage"]
                        .as_str()
                        .is_some_and(|name| storages.contains(name));
                guest || storage
            })
            .map(|row| {
                let mut row = row.clone();
                if let Some(fields) = row.as_object_mut() {
                    fields.remove("pool");
                }
                row
            })
            .collect();
        Ok(json!({"members": rows}))
    }

    /// `PUT /pools`.
    pub(super) fn put_pool(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let pool = params.text("poolid").unwrap_or_default().to_owned();
        if !self.pools.contains_key(&pool) {
            return Err(Refusal::died(format!("pool '{pool}' does not exist")));
        }
        if !self.has_quorum() {
            return Err(Refusal::died(
                "update pools failed: cfs-lock 'file-user_cfg' error: no quorum!",
            ));
        }
        let remove = params.flag("delete");
        let vms: Vec<u32> = super::schema::split_list(params.text("vms").unwrap_or_default())
            .filter_map(|vmid| vmid.parse().ok())
            .collect();
        for vmid in vms {
            self.access
                .need(caller, &format!("/vms/{vmid}"), &["VM.Allocate"], self)?;
            let held = self.pool_of(vmid).map(str::to_owned);
            match (remove, held) {
                (true, Some(held)) if held == pool => {}
                (true, _) => {
                    return Err(Refusal::died(format!(
                        "update pools failed: VM {vmid} is not a pool member"
                    )));
                }
                (false, Some(held)) if held == pool => {
                    return Err(Refusal::died(format!(
                        "update pools failed: VM {vmid} is already a pool member"
                    )));
                }
                (false, Some(held)) if !params.flag("allow-move") => {
                    return Err(Refusal::died(format!(
                        "update pools failed: VM {vmid} belongs already to pool '{held}' and 'allow-move' is not set"
                    )));
                }
                (false, _) => {}
            }
            for members in self.pools.values_mut() {
                members.remove(&vmid);
            }
            if let Some(members) = self.pools.get_mut(&pool).filter(|_| !remove) {
                members.insert(vmid);
            }
        }
        Ok(Value::Null.into())
    }
}
