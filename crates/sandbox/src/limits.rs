//! What a task may ask for beyond files and commands, and which runtime can hold to it.
//!
//! What a runtime can't hold to is refused with the field's name, never left out. This is
//! the one place that says which; `docs/sandboxes.md` has it as a table.

use crate::mounts::AllowedMount;
use crate::{SandboxError, SandboxSpec};
use polar_types::{RuntimeOffer, WRITABLE_MOUNTS};
use std::collections::BTreeMap;

/// A field of a [`SandboxSpec`] that not every runtime has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Image,
    User,
    Cpus,
    Memory,
    Pids,
    Storage,
    Gpus,
    Mounts,
    AllowedHosts,
}

impl Limit {
    const ALL: [Limit; 9] = [
        Limit::Image,
        Limit::User,
        Limit::Cpus,
        Limit::Memory,
        Limit::Pids,
        Limit::Storage,
        Limit::Gpus,
        Limit::Mounts,
        Limit::AllowedHosts,
    ];

    /// As tasks write it.
    fn field(self) -> &'static str {
        match self {
            Limit::Image => "image",
            Limit::User => "user",
            Limit::Cpus => "cpus",
            Limit::Memory => "memory_mb",
            Limit::Pids => "pids",
            Limit::Storage => "storage_mb",
            Limit::Gpus => "gpus",
            Limit::Mounts => "mounts",
            Limit::AllowedHosts => "allowed_hosts",
        }
    }

    fn is_asked(self, spec: &SandboxSpec) -> bool {
        match self {
            Limit::Image => spec.image.is_some(),
            Limit::User => spec.user.is_some(),
            Limit::Cpus => spec.cpus.is_some(),
            Limit::Memory => spec.memory_mb.is_some(),
            Limit::Pids => spec.pids.is_some(),
            Limit::Storage => spec.storage_mb.is_some(),
            Limit::Gpus => spec.gpus.is_some(),
            Limit::Mounts => !spec.mounts.is_empty(),
            Limit::AllowedHosts => !spec.allowed_hosts.is_empty(),
        }
    }
}

/// What makes sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Bubblewrap,
    Process,
    Docker,
    Podman,
    Apptainer,
}

/// How a runtime holds to a limit.
enum Support {
    Always(&'static str),
    /// Where the node is set up so. Otherwise it is refused when the sandbox is made.
    Where(&'static str, &'static str),
    Never,
}

impl Runtime {
    const ALL: [Runtime; 5] = [
        Runtime::Bubblewrap,
        Runtime::Docker,
        Runtime::Podman,
        Runtime::Apptainer,
        Runtime::Process,
    ];

    fn name(self) -> &'static str {
        match self {
            Runtime::Bubblewrap => "local",
            Runtime::Process => "local, plain processes",
            Runtime::Docker => "docker",
            Runtime::Podman => "podman",
            Runtime::Apptainer => "apptainer",
        }
    }

    fn support(self, limit: Limit) -> Support {
        use Support::{Always, Never, Where};
        const CGROUP: &str = "cgroup";
        const WRITABLE: &str = "the node may make cgroups";
        const WATCHED: &str = "watched; no file may be longer";
        match (self, limit) {
            (Runtime::Process, _) => Never,
            (Runtime::Bubblewrap, Limit::Image | Limit::User | Limit::Gpus)
            | (Runtime::Apptainer, Limit::User | Limit::Gpus)
            | (Runtime::Podman, Limit::Gpus) => Never,
            (Runtime::Apptainer, Limit::Image) => Always("SIF, archive, folder, URI"),
            (Runtime::Docker | Runtime::Podman, Limit::Image) => Always("yes"),
            (Runtime::Docker | Runtime::Podman, Limit::User) => Always("yes"),
            (Runtime::Docker, Limit::Gpus) => Where("yes", "Docker has NVIDIA's runtime"),
            (_, Limit::Mounts) => Where("yes", "the node allows the folder"),
            (_, Limit::Storage) => Always(WATCHED),
            (_, Limit::AllowedHosts) => Always("by an HTTP proxy on the node"),
            (Runtime::Docker, Limit::Cpus | Limit::Memory | Limit::Pids) => Always(CGROUP),
            (Runtime::Podman, Limit::Cpus | Limit::Memory | Limit::Pids) => {
                Where(CGROUP, "Podman may make cgroups; without root that needs version 2")
            }
            (_, Limit::Cpus | Limit::Memory | Limit::Pids) => Where(CGROUP, WRITABLE),
        }
    }

    /// What it can be asked for on this machine, which lacks these fields for these reasons.
    pub(crate) fn offer(
        self,
        lacks: impl IntoIterator<Item = (&'static str, String)>,
        mounts: &[AllowedMount],
    ) -> RuntimeOffer {
        let never = |limit: &Limit| matches!(self.support(*limit), Support::Never);
        let never = Limit::ALL.into_iter().filter(never);
        let mut refuses: BTreeMap<String, String> =
            never.map(|limit| (limit.field().to_owned(), self.never(limit))).collect();
        for (field, why) in lacks {
            refuses.entry(field.to_owned()).or_insert(why);
        }
        let all = "its operator allows folders with --allow-mount PATH";
        let writing = "its operator allows writing with --allow-mount PATH:rw";
        if mounts.is_empty() {
            refuses.entry(Limit::Mounts.field().to_owned()).or_insert_with(|| all.to_owned());
        }
        if !mounts.iter().any(|mount| mount.writable) {
            refuses.insert(WRITABLE_MOUNTS.to_owned(), writing.to_owned());
        }
        let fields = Limit::ALL.map(|limit| limit.field().to_owned()).into_iter();
        let holds = fields.filter(|field| !refuses.contains_key(field)).collect();
        RuntimeOffer { runtime: self.kind().to_owned(), holds, refuses }
    }

    /// As tasks write it.
    fn kind(self) -> &'static str {
        match self {
            Runtime::Process => Runtime::Bubblewrap.name(),
            other => other.name(),
        }
    }

    fn never(self, limit: Limit) -> String {
        let able = |runtime: &Runtime| !matches!(runtime.support(limit), Support::Never);
        let others: Vec<&str> = Runtime::ALL.into_iter().filter(able).map(Runtime::name).collect();
        format!(
            "{} sandboxes have no `{}`; leave it out or use {}",
            self.name(),
            limit.field(),
            others.join(", ")
        )
    }

    /// Refuses what this runtime never has.
    pub(crate) fn refuse(self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let refused =
            |limit: &Limit| limit.is_asked(spec) && matches!(self.support(*limit), Support::Never);
        let Some(limit) = Limit::ALL.into_iter().find(refused) else { return Ok(()) };
        Err(SandboxError::new("make sandbox", self.never(limit)))
    }
}

/// Says in a command's errors that some of its processes were killed.
pub(crate) fn out_of_memory(memory_mb: Option<u64>, killed: u64) -> String {
    let limit = memory_mb.unwrap_or_default();
    format!(
        "polar: the sandbox was out of its `memory_mb` of {limit}, for which the kernel killed \
         {killed} of its processes\n"
    )
}

/// A field that this node can't hold to, with the reason and what to do.
pub(crate) fn not_here(field: &str, why: impl std::fmt::Display) -> SandboxError {
    let message = format!("`{field}` cannot be held to on this node: {why}; or leave it out");
    SandboxError::new("make sandbox", message)
}

/// The table of all that runtimes hold to, as Markdown.
pub fn limits_table() -> String {
    let row = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
    let names = Runtime::ALL.map(|runtime| runtime.name().to_owned());
    let mut table = row("field", names.to_vec());
    table.push_str(&row("---", vec!["---".to_owned(); Runtime::ALL.len()]));
    for limit in Limit::ALL {
        let cells = Runtime::ALL.map(|runtime| match runtime.support(limit) {
            Support::Always(how) => how.to_owned(),
            Support::Where(how, condition) => format!("{how}, where {condition}"),
            Support::Never => "refused".to_owned(),
        });
        table.push_str(&row(&format!("`{}`", limit.field()), cells.to_vec()));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_says_what_is_refused_as_refusals_do() {
        let spec = SandboxSpec { pids: Some(64), ..SandboxSpec::bare("s".into(), "/s".into()) };
        let offer = Runtime::Process.offer([], &[]);
        let refused = Runtime::Process.refuse(&spec).unwrap_err().message;
        assert_eq!((offer.runtime.as_str(), &offer.refuses["pids"]), ("local", &refused));
        let mounts = [AllowedMount { path: "/data".into(), writable: false }];
        let offer = Runtime::Bubblewrap.offer([("pids", "no cgroups".to_owned())], &mounts);
        assert_eq!(offer.refuses["pids"], "no cgroups");
        assert!(offer.refuses[WRITABLE_MOUNTS].contains("--allow-mount PATH:rw"));
        let holds: Vec<_> = offer.holds.iter().map(String::as_str).collect();
        assert_eq!(holds, ["allowed_hosts", "cpus", "memory_mb", "mounts", "storage_mb"]);
    }

    /// Run with `POLAR_WRITE_DOCS=1`, it writes the table instead.
    #[test]
    fn documentation_has_the_limits_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sandboxes.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (begin, end) = ("<!-- limits -->\n", "<!-- /limits -->");
        let (before, rest) = document.split_once(begin).unwrap();
        let (found, after) = rest.split_once(end).unwrap();
        if std::env::var_os("POLAR_WRITE_DOCS").is_some() {
            let written = format!("{before}{begin}{}{end}{after}", limits_table());
            std::fs::write(path, written).unwrap();
            return;
        }
        assert_eq!(found, limits_table(), "run this test with POLAR_WRITE_DOCS=1");
    }
}
