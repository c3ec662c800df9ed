//! The commands of a local sandbox.

use super::bubblewrap::{self, Jail};
use super::layout::Layout;
use super::{LocalConfig, LocalIsolation, LocalProvider, check, process};
use crate::bridge::Way;
use crate::cgroups::Group;
use crate::folder_sandbox::{Commands, Place};
use crate::namespaces::Dying;
use crate::program::Program;
use crate::spawner::Spawner;
use crate::{Exec, ExecEnd, SandboxError, SandboxSpec};
use async_trait::async_trait;
use polar_types::Network;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where programs are looked for, unless the spec says otherwise.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug)]
pub(super) struct LocalCommands {
    config: LocalConfig,
    helper: Option<Arc<Program>>,
    spawner: Spawner,
    spec: SandboxSpec,
    layout: Layout,
    mark: String,
    group: Option<Arc<Group>>,
    way: Way,
    pub(super) dying: Arc<Dying>,
}

impl LocalCommands {
    pub(super) fn new(
        provider: &LocalProvider,
        spec: SandboxSpec,
        layout: Layout,
        mark: String,
        group: Option<Arc<Group>>,
    ) -> (LocalCommands, Place) {
        let config = provider.config.clone();
        let open = spec.network == Network::Open || config.isolation == LocalIsolation::Process;
        let gateway_url = if open {
            format!("http://{}", spec.gateway_address)
        } else {
            format!("http://127.0.0.1:{}", config.gateway_port)
        };
        let way = Way::of(&spec, config.gateway_port);
        let place = Place {
            name: spec.name.clone(),
            mark: mark.clone(),
            folder: layout.folder.clone(),
            work: layout.work.clone(),
            inside_work: layout.inside_work.clone(),
            inside_home: layout.inside_home.clone(),
            gateway_url,
            group: group.clone(),
            memory_mb: spec.memory_mb,
            storage_mb: spec.storage_mb,
            egress: way.egress.clone(),
        };
        let commands = LocalCommands {
            config,
            helper: provider.helper.clone(),
            spawner: provider.spawner.clone(),
            spec,
            layout,
            mark,
            group,
            way,
            dying: Arc::default(),
        };
        (commands, place)
    }

    fn base_env(&self) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let mut set = |name: &str, value: &str| env.insert(name.to_owned(), value.to_owned());
        set("PATH", PATH);
        set("HOME", &self.layout.inside_home);
        set("LANG", "C.UTF-8");
        set("TERM", "dumb");
        if self.config.isolation == LocalIsolation::Process {
            set("TMPDIR", &self.layout.tmp.display().to_string());
        }
        env
    }
}

#[async_trait]
impl Commands for LocalCommands {
    async fn run(&self, mut exec: Exec, closed: bool) -> Result<ExecEnd, SandboxError> {
        let mut env = self.base_env();
        env.extend(self.way.variables());
        env.extend(self.spec.env.clone());
        env.append(&mut exec.env);
        exec.env = env;
        exec.workdir = Some(self.inside(exec.workdir.as_deref().unwrap_or_default()));
        if self.config.isolation == LocalIsolation::Process {
            return process::run(&self.mark, &self.spawner, &exec).await;
        }
        let jail = Jail {
            spec: &self.spec,
            network: if closed { Network::None } else { self.spec.network },
            layout: &self.layout,
            bubblewrap: &self.config.bubblewrap,
            helper: check::helper(&self.config, self.helper.as_deref())?,
            way: self.way.clone(),
            mark: &self.mark,
            group: self.group.as_deref(),
            spawner: &self.spawner,
            dying: &self.dying,
        };
        bubblewrap::run(jail, &exec).await
    }

    fn inside(&self, path: &str) -> String {
        self.layout.inside(path)
    }
}
