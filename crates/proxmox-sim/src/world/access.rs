//! Who is let in, and to what.

use super::{
    answers::Refusal,
    params::Params,
    setup::{AclSetup, Setup, TokenSetup, UserSetup},
};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// All privileges there are, by version.
fn all_privileges(version: u8) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = [
        "Datastore.Allocate",
        "Datastore.AllocateSpace",
        "Datastore.AllocateTemplate",
        "Datastore.Audit",
        "Group.Allocate",
        "Mapping.Audit",
        "Mapping.Modify",
        "Mapping.Use",
        "Permissions.Modify",
        "Pool.Allocate",
        "Pool.Audit",
        "Realm.Allocate",
        "Realm.AllocateUser",
        "SDN.Allocate",
        "SDN.Audit",
        "SDN.Use",
        "Sys.AccessNetwork",
        "Sys.Audit",
        "Sys.Console",
        "Sys.Incoming",
        "Sys.Modify",
        "Sys.PowerMgmt",
        "Sys.Syslog",
        "User.Modify",
        "VM.Allocate",
        "VM.Audit",
        "VM.Backup",
        "VM.Clone",
        "VM.Config.CDROM",
        "VM.Config.CPU",
        "VM.Config.Cloudinit",
        "VM.Config.Disk",
        "VM.Config.HWType",
        "VM.Config.Memory",
        "VM.Config.Network",
        "VM.Config.Options",
        "VM.Console",
        "VM.Migrate",
        "VM.PowerMgmt",
        "VM.Snapshot",
        "VM.Snapshot.Rollback",
    ]
    .map(str::to_owned)
    .into();
    if version <= 8 {
        all.insert("VM.Monitor".to_owned());
    } else {
        for name in [
            "Audit",
            "FileRead",
            "FileWrite",
            "FileSystemMgmt",
            "Unrestricted",
        ] {
            all.insert(format!("VM.GuestAgent.{name}"));
        }
        all.insert("VM.Replicate".to_owned());
    }
    all
}

/// What the product's role has, by version.
pub(super) fn privileges_of_the_product(version: u8) -> &'static [&'static str] {
    const NINE: [&str; 20] = [
        "VM.Clone",
        "VM.Allocate",
        "VM.Audit",
        "VM.PowerMgmt",
        "VM.Config.Options",
        "VM.Config.CPU",
        "VM.Config.Memory",
        "VM.Config.Network",
        "VM.Config.CDROM",
        "VM.Config.Cloudinit",
        "VM.Config.Disk",
        "VM.GuestAgent.Audit",
        "Datastore.AllocateSpace",
        "Datastore.Audit",
        "Datastore.AllocateTemplate",
        "Datastore.Allocate",
        "SDN.Use",
        "Pool.Audit",
        "Pool.Allocate",
        "Sys.Audit",
    ];
    const EIGHT: [&str; 20] = [
        "VM.Clone",
        "VM.Allocate",
        "VM.Audit",
        "VM.PowerMgmt",
        "VM.Config.Options",
        "VM.Config.CPU",
        "VM.Config.Memory",
        "VM.Config.Network",
        "VM.Config.CDROM",
        "VM.Config.Cloudinit",
        "VM.Config.Disk",
        "VM.Monitor",
        "Datastore.AllocateSpace",
        "Datastore.Audit",
        "Datastore.AllocateTemplate",
        "Datastore.Allocate",
        "SDN.Use",
        "Pool.Audit",
        "Pool.Allocate",
        "Sys.Audit",
    ];
    if version <= 8 { &EIGHT } else { &NINE }
}

/// Who makes a call: a user, or one of its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// `user@realm` or `user@realm!token`.
    pub(super) id: String,
}

impl Caller {
    /// The user, without the token.
    pub(super) fn user(&self) -> &str {
        self.id.split('!').next().unwrap_or_default()
    }
}

/// The users' file.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    pub(super) users: BTreeMap<String, UserSetup>,
    pub(super) tokens: BTreeMap<String, TokenSetup>,
    pub(super) roles: BTreeMap<String, BTreeSet<String>>,
    pub(super) acl: Vec<AclSetup>,
    /// Privileges that every role lacks for now.
    pub(super) missing: BTreeSet<String>,
    pub(super) revoked: BTreeMap<String, TokenSetup>,
}

/// Pool membership, as far as permissions need it.
pub(super) trait Membership {
    /// The pool of a guest.
    fn pool_of_guest(&self, vmid: &str) -> Option<&str>;
    /// The pool of a storage.
    fn pool_of_storage(&self, storage: &str) -> Option<&str>;
}

/// Privilege to whether it propagates.
pub(super) type Privileges = BTreeMap<String, bool>;

impl Access {
    pub(super) fn new(setup: &Setup) -> Self {
        let version = setup.version;
        let all = all_privileges(version);
        let set = |names: &[&str]| -> BTreeSet<String> {
            names
                .iter()
                .map(|&name| name.to_owned())
                .filter(|name| all.contains(name))
                .collect()
        };
        let ends = |end: &str| -> BTreeSet<String> {
            all.iter().filter(|it| it.ends_with(end)).cloned().collect()
        };
        let mut auditor = ends(".Audit");
        auditor.retain(|name| !name.starts_with("Realm"));
        let mut admin = all.clone();
        admin.retain(|it| {
            !matches!(
                it.as_str(),
                "Permissions.Modify"
                    | "Realm.Allocate"
                    | "Sys.PowerMgmt"
                    | "Sys.Modify"
                    | "Sys.Incoming"
                    | "Sys.AccessNetwork"
            )
        });
        let mut vm_admin: BTreeSet<String> = all
            .iter()
            .filter(|it| it.starts_with("VM."))
            .cloned()
            .collect();
        let mut roles: BTreeMap<String, BTreeSet<String>> = [
            ("PVEAuditor".to_owned(), auditor),
            (
                "PVEDatastoreUser".to_owned(),
                set(&["Datastore.AllocateSpace", "Datastore.Audit"]),
            ),
            (
                "PVEDatastoreAdmin".to_owned(),
                all.iter()
                    .filter(|it| it.starts_with("Datastore."))
                    .cloned()
                    .collect(),
            ),
            ("PVETemplateUser".to_owned(), set(&["VM.Audit", "VM.Clone"])),
            ("PVESDNUser".to_owned(), set(&["SDN.Audit", "SDN.Use"])),
            ("PVEPoolUser".to_owned(), set(&["Pool.Audit"])),
            (
                "PVEPoolAdmin".to_owned(),
                set(&["Pool.Audit", "Pool.Allocate"]),
            ),
            ("NoAccess".to_owned(), BTreeSet::new()),
        ]
        .into();
        roles.insert("PVEVMAdmin".to_owned(), vm_admin.clone());
        vm_admin.retain(|it| {
            matches!(
                it.as_str(),
                "VM.Audit"
                    | "VM.Backup"
                    | "VM.Config.CDROM"
                    | "VM.Config.Cloudinit"
                    | "VM.Console"
                    | "VM.PowerMgmt"
                    | "VM.GuestAgent.Audit"
                    | "VM.GuestAgent.FileSystemMgmt"
            )
        });
        roles.insert("PVEVMUser".to_owned(), vm_admin);
        roles.insert("PVEAdmin".to_owned(), admin);
        roles.insert("Administrator".to_owned(), all);
        for (name, privileges) in &setup.roles {
            roles.insert(name.clone(), privileges.iter().cloned().collect());
        }
        let mut users: BTreeMap<String, UserSetup> = setup
            .users
            .iter()
            .map(|user| (user.id.clone(), user.clone()))
            .collect();
        users.insert(
            "root@pam".to_owned(),
            UserSetup {
                id: "root@pam".to_owned(),
                enabled: true,
                expire: 0,
            },
        );
        Self {
            users,
            tokens: setup
                .tokens
                .iter()
                .map(|token| (token.id.clone(), token.clone()))
                .collect(),
            roles,
            acl: setup.acl.clone(),
            missing: BTreeSet::new(),
            revoked: BTreeMap::new(),
        }
    }

    /// Reads the credentials of a request. `now` is the time of day in seconds.
    pub(super) fn identify(
        &self,
        headers: &[(String, String)],
        now: u64,
    ) -> Result<Caller, Refusal> {
        let refused = || Refusal::empty(401, "Authentication failed!");
        let header = |wanted: &str| {
            headers
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.as_str())
        };
        if header("cookie").is_some_and(|value| value.contains("PVEAuthCookie=")) {
            return Err(refused());
        }
        let given = header("authorization")
            .and_then(|value| value.strip_prefix("PVEAPIToken"))
            .and_then(|value| value.strip_prefix(['=', ' ']))
            .ok_or_else(|| Refusal::empty(401, "No ticket"))?;
        let given = percent_decode_str(given.split(';').next().unwrap_or_default())
            .decode_utf8_lossy()
            .into_owned();
        let (id, secret) = given.trim().rsplit_once('=').ok_or_else(refused)?;
        let caller = Caller { id: id.to_owned() };
        let alive = |expire: u64| expire == 0 || expire > now;
        self.users
            .get(caller.user())
            .filter(|user| user.enabled && alive(user.expire))
            .ok_or_else(refused)?;
        self.tokens
            .get(id)
            .filter(|token| alive(token.expire) && token.secret == secret)
            .ok_or_else(refused)?;
        Ok(caller)
    }

    /// The roles that an entry gives at a path, from `/` down; each level that has any
    /// replaces those above it.
    fn roles_of(&self, who: &str, path: &str) -> BTreeMap<String, bool> {
        if let Some(token) = self.tokens.get(who)
            && !token.separated
        {
            return self.roles_of(who.split('!').next().unwrap_or_default(), path);
        }
        if who == "root@pam" {
            return [("Administrator".to_owned(), true)].into();
        }
        let mut levels = vec!["/".to_owned()];
        let mut walked = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            walked = format!("{walked}/{part}");
            levels.push(walked.clone());
        }
        let last = levels.len() - 1;
        let mut roles = BTreeMap::new();
        for (depth, level) in levels.iter().enumerate() {
            let here: BTreeMap<String, bool> = self
                .acl
                .iter()
                .filter(|entry| entry.path == *level && entry.who == who)
                .filter(|entry| entry.propagate || depth == last)
                .map(|entry| (entry.role.clone(), entry.propagate))
                .collect();
            if !here.is_empty() {
                roles = here;
            }
        }
        if roles.contains_key("NoAccess") {
            return [("NoAccess".to_owned(), true)].into();
        }
        roles
    }

    /// What someone may do at a path.
    pub(super) fn privileges(&self, who: &str, path: &str, pools: &dyn Membership) -> Privileges {
        let mut privileges = Privileges::new();
        for (role, propagates) in self.pooled_roles(who, path, pools) {
            for privilege in self.roles.get(&role).into_iter().flatten() {
                if self.grants(who, privilege) {
                    *privileges.entry(privilege.clone()).or_default() |= propagates;
                }
            }
        }
        if self.tokens.get(who).is_some_and(|token| token.separated) {
            let user = who.split('!').next().unwrap_or_default();
            let users = self.privileges(user, path, pools);
            privileges.retain(|name, propagates| {
                users.get(name).is_some_and(|its| {
                    *propagates &= its;
                    true
                })
            });
        }
        privileges
    }

    /// The roles at a path, with those that a pool adds.
    fn pooled_roles(
        &self,
        who: &str,
        path: &str,
        pools: &dyn Membership,
    ) -> BTreeMap<String, bool> {
        let mut roles = self.roles_of(who, path);
        if !roles.contains_key("NoAccess") {
            let pool = match path.strip_prefix("/vms/") {
                Some(vmid) => pools.pool_of_guest(vmid),
                None => path
                    .strip_prefix("/storage/")
                    .and_then(|storage| pools.pool_of_storage(storage)),
            };
            if let Some(pool) = pool {
                for (role, propagates) in self.roles_of(who, &format!("/pool/{pool}")) {
                    roles.entry(role).or_insert(propagates);
                }
            }
        }
        roles
    }

    /// Whether roles give this privilege to someone at all just now.
    fn grants(&self, who: &str, privilege: &str) -> bool {
        !self.missing.contains(privilege) || who.starts_with("root@pam")
    }

    fn user_or_token_has(
        &self,
        who: &str,
        path: &str,
        wanted: &str,
        pools: &dyn Membership,
    ) -> bool {
        let given = self
            .pooled_roles(who, path, pools)
            .keys()
            .filter_map(|role| self.roles.get(role))
            .any(|privileges| privileges.contains(wanted));
        if !given || !self.grants(who, wanted) {
            return false;
        }
        match who.split_once('!') {
            Some((user, _)) if self.tokens.get(who).is_some_and(|it| it.separated) => {
                self.user_or_token_has(user, path, wanted, pools)
            }
            _ => true,
        }
    }

    /// Whether someone has a privilege at a path.
    pub(super) fn has(
        &self,
        who: &Caller,
        path: &str,
        wanted: &str,
        pools: &dyn Membership,
    ) -> bool {
        self.user_or_token_has(&who.id, path, wanted, pools)
    }

    /// All of the privileges, or a refusal that names the first one missing.
    pub(super) fn need(
        &self,
        who: &Caller,
        path: &str,
        wanted: &[&str],
        pools: &dyn Membership,
    ) -> Result<(), Refusal> {
        let got = self.privileges(&who.id, path, pools);
        match wanted.iter().find(|name| !got.contains_key(**name)) {
            None => Ok(()),
            Some(name) => Err(Refusal::forbidden(&format!("{path}, {name}"))),
        }
    }

    /// One of the privileges, or a refusal that names them all.
    pub(super) fn need_any(
        &self,
        who: &Caller,
        path: &str,
        wanted: &[&str],
        pools: &dyn Membership,
    ) -> Result<(), Refusal> {
        let got = self.privileges(&who.id, path, pools);
        if wanted.iter().any(|name| got.contains_key(*name)) {
            return Ok(());
        }
        let all = wanted.join("|");
        Err(Refusal::forbidden(&format!("{path}, {all}")))
    }

    /// The check of the schema: `["perm", path, [privileges], "any", 1]`, `and`, `or`.
    pub(super) fn check(
        &self,
        who: &Caller,
        check: &Value,
        params: &Params,
        pools: &dyn Membership,
    ) -> Result<(), Refusal> {
        let Some(parts) = check.as_array() else {
            return Ok(());
        };
        match parts.first().and_then(Value::as_str) {
            Some("and") => parts[1..]
                .iter()
                .try_for_each(|part| self.check(who, part, params, pools)),
            Some("or") => {
                if parts[1..]
                    .iter()
                    .any(|part| self.check(who, part, params, pools).is_ok())
                {
                    Ok(())
                } else {
                    Err(Refusal::forbidden(""))
                }
            }
            Some("perm") => {
                let option = |name: &str| {
                    parts
                        .iter()
                        .position(|part| part.as_str() == Some(name))
                        .and_then(|at| parts.get(at + 1))
                };
                if let Some(needed) = option("require_param").and_then(Value::as_str)
                    && params.text(needed).is_none()
                {
                    return Err(Refusal::forbidden(""));
                }
                let path = fill(parts[1].as_str().unwrap_or_default(), params);
                let wanted: Vec<&str> = parts[2]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                if option("any").is_some() {
                    self.need_any(who, &path, &wanted, pools)
                } else {
                    self.need(who, &path, &wanted, pools)
                }
            }
            _ => Ok(()),
        }
    }

    /// All paths of which someone is told without asking for one.
    pub(super) fn told_paths(&self, who: &str) -> BTreeSet<String> {
        let user = who.split('!').next().unwrap_or_default();
        let mut paths: BTreeSet<String> = [
            "/",
            "/access",
            "/access/groups",
            "/nodes",
            "/pool",
            "/sdn",
            "/storage",
            "/vms",
        ]
        .map(str::to_owned)
        .into();
        paths.extend(
            self.acl
                .iter()
                .filter(|entry| entry.who == who || entry.who == user)
                .map(|entry| entry.path.clone()),
        );
        paths
    }
}

/// Puts parameters into `/vms/{vmid}`; one that is missing becomes `-`.
fn fill(template: &str, params: &Params) -> String {
    template
        .split('/')
        .map(|part| {
            part.strip_prefix('{')
                .and_then(|part| part.strip_suffix('}'))
                .map_or(part, |name| params.text(name).unwrap_or("-"))
        })
        .collect::<Vec<_>>()
        .join("/")
}
