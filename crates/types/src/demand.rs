//! What a session asks of its node, and what nodes offer.

use crate::{FieldProblem, Footprint, NodeInfo, TaskSpec};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Most nodes that are named in a refusal; others have much the same to say.
const MOST_NODES: usize = 3;

/// What one runtime of a node can be asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RuntimeOffer {
    /// Which: `local`, `docker`.
    pub runtime: String,
    /// Fields of a task's `runtime` that it holds to.
    pub holds: BTreeSet<String>,
    /// Fields that it cannot hold to there, each with the reason and what to do about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refuses: BTreeMap<String, String>,
}

/// What a node must be able to do to take a session. Tasks that ask for the same have the same
/// demand, of which there are few.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// The runtime that it must have.
    pub runtime: String,
    /// Fields of the task's `runtime` that not every node holds to.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub fields: BTreeSet<String>,
    /// What a sandbox takes.
    #[serde(flatten)]
    pub footprint: Footprint,
}

/// What a node lacks for a demand.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lack<'a> {
    /// The field of the task's `runtime`; nothing where it lacks the runtime itself.
    field: Option<&'a str>,
    why: Cow<'a, str>,
}

impl Demand {
    /// That of a task's sessions.
    pub fn of(task: &TaskSpec) -> Self {
        let runtime = &task.runtime;
        let asked = [
            ("image", runtime.image.is_some()),
            ("user", runtime.user.is_some()),
            ("cpus", runtime.cpus.is_some()),
            ("memory_mb", runtime.memory_mb.is_some()),
            ("pids", runtime.pids.is_some()),
            ("storage_mb", runtime.storage_mb.is_some()),
            ("gpus", runtime.gpus.is_some()),
            ("mounts", !runtime.mounts.is_empty()),
            (WRITABLE_MOUNTS, runtime.mounts.iter().any(|mount| !mount.read_only)),
            ("allowed_hosts", !runtime.allowed_hosts.is_empty()),
        ];
        let fields = asked.into_iter().filter(|(_, is_asked)| *is_asked);
        Self {
            runtime: runtime.kind.as_str().to_owned(),
            fields: fields.map(|(field, _)| field.to_owned()).collect(),
            footprint: Footprint::of(runtime),
        }
    }

    /// Whether a node can do it.
    pub fn is_met_by(&self, node: &NodeInfo) -> bool {
        self.lack(node).is_none()
    }

    /// A node that says nothing of a field is taken to hold to it: its own refusal comes later.
    fn lack<'a>(&'a self, node: &'a NodeInfo) -> Option<Lack<'a>> {
        if !node.runtimes.contains(&self.runtime) {
            return Some(Lack { field: None, why: "it has no such runtime".into() });
        }
        let offer = node.offers.iter().find(|offer| offer.runtime == self.runtime);
        let refused = self.fields.iter().find_map(|field| {
            let why = offer?.refuses.get(field)?;
            Some(Lack { field: Some(field), why: why.into() })
        });
        refused.or_else(|| {
            let (field, why) = node.room.why_never(self.footprint)?;
            Some(Lack { field: Some(field), why: why.into() })
        })
    }

    /// Why none of these nodes can do it, as a problem of the task's field; nothing where one can,
    /// or where there are none.
    pub fn problem(&self, nodes: &[&NodeInfo]) -> Option<FieldProblem> {
        let lacks = nodes.iter().map(|node| Some((*node, self.lack(node)?)));
        let lacks = lacks.collect::<Option<Vec<_>>>().filter(|lacks| !lacks.is_empty())?;
        // Those that come closest say what to change.
        let mut closest = lacks.iter().filter_map(|(_, lack)| lack.field);
        let Some(field) = closest.next() else { return Some(self.no_runtime(nodes)) };
        let told = lacks.iter().filter(|(_, lack)| lack.field == Some(field));
        let told: Vec<_> = told.map(|(node, lack)| (&node.node_id, &lack.why)).collect();
        let more = told.len().saturating_sub(MOST_NODES);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let told = told.iter().take(MOST_NODES).map(|(node, why)| format!("{node}: {why}"));
        let told: Vec<_> = told.collect();
        let runtime = &self.runtime;
        let what = format!(
            "no node can hold to this with the {runtime} runtime ({}{more})",
            told.join("; ")
        );
        Some(FieldProblem::new(
            format!("runtime.{field}"),
            what,
            format!("{{\"type\": {runtime:?}}}"),
        ))
    }

    fn no_runtime(&self, nodes: &[&NodeInfo]) -> FieldProblem {
        let there: BTreeSet<&str> =
            nodes.iter().flat_map(|node| &node.runtimes).map(String::as_str).collect();
        let first = there.first().copied().unwrap_or("local");
        let there: Vec<_> = there.iter().copied().collect();
        let runtime = &self.runtime;
        let what = format!(
            "no node offers {runtime}; there are nodes with {}. Use one of these, or start a node \
             where {runtime} works (`polar doctor` there says what it lacks)",
            if there.is_empty() { "no runtime".to_owned() } else { there.join(", ") }
        );
        FieldProblem::new("runtime.type", what, format!("{first:?}"))
    }
}

/// A mount that a sandbox may write to, in demands and offers.
pub const WRITABLE_MOUNTS: &str = "mounts[].read_only";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Known, NodeRoom, Slots, TaskRequest};
    use serde_json::{Value, json};

    fn demand(runtime: Value) -> Demand {
        let request = json!({"instruction": "x", "harness": "pi", "runtime": runtime});
        let request: TaskRequest = serde_json::from_value(request).unwrap();
        let known = Known { harnesses: vec!["pi".to_owned()], ..Known::default() };
        Demand::of(&request.resolve("t".parse().unwrap(), &known).unwrap())
    }

    fn node(name: &str, runtimes: &[&str], refuses: &[(&str, &str)]) -> NodeInfo {
        let refuses = refuses.iter().map(|(field, why)| ((*field).to_owned(), (*why).to_owned()));
        let refuses: BTreeMap<_, _> = refuses.collect();
        let offer = |runtime: &&str| RuntimeOffer {
            runtime: (*runtime).to_owned(),
            holds: BTreeSet::new(),
            refuses: refuses.clone(),
        };
        NodeInfo {
            node_id: name.parse().unwrap(),
            boot_id: String::new(),
            instance_id: String::new(),
            version: String::new(),
            slots: Slots::default(),
            runtimes: runtimes.iter().map(|runtime| (*runtime).to_owned()).collect(),
            offers: runtimes.iter().map(offer).collect(),
            room: NodeRoom::default(),
            engine: String::new(),
            engines: Vec::new(),
            held: BTreeMap::new(),
            troubles: Vec::new(),
            engine_errors: 0,
        }
    }

    #[test]
    fn the_problem_names_the_field_the_runtime_and_the_mend() {
        let plain = node("n1", &["local"], &[("memory_mb", "no cgroups; run it as root")]);
        let able = node("n2", &["local", "docker"], &[]);
        let memory = demand(json!({"type": "local", "memory_mb": 64}));
        let problem = memory.problem(&[&plain]).unwrap();
        assert_eq!(problem.field, "runtime.memory_mb");
        let said = problem.to_string();
        assert!(said.contains("local runtime (n1: no cgroups; run it as root)"), "{said}");
        assert!(memory.is_met_by(&able) && !memory.is_met_by(&plain));
        // One is enough, and with none nothing is known.
        assert_eq!(memory.problem(&[&plain, &able]), None);
        assert_eq!(memory.problem(&[]), None);
        assert!(demand(json!("local")).is_met_by(&plain));

        let apptainer = demand(json!({"type": "apptainer", "image": "/a.sif"}));
        let problem = apptainer.problem(&[&plain, &able]).unwrap();
        assert_eq!(problem.field, "runtime.type");
        let said = problem.to_string();
        assert!(said.contains("no node offers apptainer; there are nodes with docker, local"));
    }

    #[test]
    fn a_node_too_small_for_a_sandbox_lacks_the_field() {
        let mut small = node("n1", &["local", "docker"], &[]);
        small.room = NodeRoom { memory_mb: Some(4096), storage_mb: Some(900), ..small.room };
        let fits = json!({"type": "local", "memory_mb": 4096, "storage_mb": 900});
        assert!(demand(fits).is_met_by(&small));
        let memory = demand(json!({"type": "local", "memory_mb": 4097}));
        let problem = memory.problem(&[&small]).unwrap();
        assert_eq!(problem.field, "runtime.memory_mb");
        let said = problem.to_string();
        assert!(said.contains("n1: its sandboxes may take 4096 MiB of memory in all"), "{said}");
        assert!(said.contains("--sandbox-memory-mb"), "{said}");
        let disk = demand(json!({"type": "local", "storage_mb": 901}));
        assert_eq!(disk.problem(&[&small]).unwrap().field, "runtime.storage_mb");
        // Files of containers lie where their daemon keeps them.
        let container = json!({"type": "docker", "image": "debian:12", "storage_mb": 901});
        assert!(demand(container).is_met_by(&small));
        // Another node may have the room.
        assert_eq!(memory.problem(&[&small, &node("n2", &["local"], &[])]), None);
    }

    #[test]
    fn a_node_of_an_older_version_is_asked_for_its_runtimes_alone() {
        let mut old = node("n1", &["local"], &[("pids", "no")]);
        old.offers.clear();
        assert!(demand(json!({"type": "local", "pids": 64})).is_met_by(&old));
        // What an older version stored of a task.
        let stored: Demand = serde_json::from_str(r#"{"runtime":"local"}"#).unwrap();
        assert_eq!(serde_json::to_string(&stored).unwrap(), r#"{"runtime":"local"}"#);
        assert!(stored.is_met_by(&old));
    }
}
