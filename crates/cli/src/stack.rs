//! Wiring: from what the user said to running parts.

use crate::args::{Isolation, NodeArgs, StageArgs};
use crate::engines::NodeEngines;
use crate::interrupt::{Interrupted, Interrupts};
use crate::paths;
use crate::token::{self, Token};
use anyhow::{Context, Result, bail};
use polar_gateway::GatewayConfig;
use polar_node::{Node, NodeConfig, NodeError, ServerAddress};
use polar_sandbox::{
    AllowedMount, ApptainerConfig, ApptainerProvider, DockerConfig, DockerProvider, LocalConfig,
    LocalIsolation, LocalProvider, SandboxProvider,
};
use polar_server::{Server, ServerConfig, ServerHandle, StartError};
use polar_session::harness::HarnessAdapter;
use polar_types::Known;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes kept of each output of a command.
const OUTPUT_LIMIT: u64 = 16 << 20;

/// How long sessions may go on that still run when all that was asked for has ended.
const GRACE: Duration = Duration::from_secs(30);

/// What `polar up`, `run` and `quickstart` start: server and node in one process.
pub(crate) struct StackConfig {
    /// Where the control API listens; port 0 takes a free one.
    pub(crate) api: SocketAddr,
    pub(crate) token: Token,
    pub(crate) state: PathBuf,
    /// Folders from which tasks of the published API may have files.
    pub(crate) upload_folders: Vec<PathBuf>,
    pub(crate) node: NodeArgs,
}

/// Server and node in one process. They speak HTTP like on two machines, so that there
/// is one path to keep right.
pub(crate) struct Stack {
    server: ServerHandle,
    node: Node,
    api_url: String,
    state: PathBuf,
}

impl Stack {
    pub(crate) async fn start(config: StackConfig, engines: NodeEngines) -> Result<Self> {
        let mut server = server_config(config.api, &config.state, &config.token);
        server.upload_folders = config.upload_folders;
        paths::make_private(&server.data)?;
        let server = start_server(server).await?;
        let api_url = format!("http://{}", server.addr());
        let node = node_config(NodeSettings {
            node_id: paths::node_id(config.node.node_id, &node_folder(&config.state))?,
            server: Some(ServerAddress { url: api_url.clone(), token: Some(config.token.secret) }),
            state: node_folder(&config.state),
            gateway_listen: SocketAddr::new(config.node.proxy_host, config.node.proxy_port),
            control: None,
            concurrency: config.node.concurrency,
            stages: config.node.stages,
            isolation: config.node.local_isolation,
            allow_mounts: config.node.allow_mounts,
            engines,
        })
        .await?;
        let proxy = node.gateway_listen;
        let node = start_node(node, |taken| match taken == proxy {
            true => "--proxy-port",
            false => "--port",
        })
        .await?;
        Ok(Self { server, node, api_url, state: config.state })
    }

    /// Returns when the server has refused the node for good, with what to do about it.
    pub(crate) async fn refused(&self) -> anyhow::Error {
        refused(&self.node).await
    }

    pub(crate) fn api_url(&self) -> &str {
        &self.api_url
    }

    pub(crate) fn proxy(&self) -> SocketAddr {
        self.node.gateway_address()
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Lets running sessions end for a while, then stops both.
    pub(crate) async fn wind_down(
        self,
        grace: Duration,
        interrupts: &mut Interrupts,
    ) -> Result<()> {
        wind_down(self.node, grace, interrupts).await?;
        interrupts.unless_again(self.server.shutdown()).await
    }

    /// Stops both. What still runs after `grace` is ended and its sandboxes are removed.
    async fn stop(self, grace: Duration) {
        self.node.shutdown(grace).await;
        self.server.shutdown().await;
    }
}

/// Starts server and node for as long as `work` takes. They are taken down however it
/// ends: on a signal, or an error, with running sessions ended at once.
pub(crate) async fn with_stack<T>(
    config: StackConfig,
    engines: NodeEngines,
    interrupts: &mut Interrupts,
    work: impl AsyncFnOnce(&Stack) -> Result<T>,
) -> Result<T> {
    let stack = Stack::start(config, engines).await?;
    let done = interrupts
        .unless(async {
            tokio::select! {
                done = work(&stack) => done,
                error = stack.refused() => Err(error),
            }
        })
        .await;
    let grace = if done.is_ok() { GRACE } else { Duration::ZERO };
    interrupts.unless_again(stack.stop(grace)).await?;
    done.map_err(|error| match error.is::<Interrupted>() {
        true => error.context("ended what ran and removed its sandboxes"),
        false => error,
    })
}

/// Returns when the server has refused the node for good, with what to do about it.
pub(crate) async fn refused(node: &Node) -> anyhow::Error {
    let error = node.refused().await;
    let help = matches!(*error, NodeError::Unauthorized { .. }).then(|| {
        format!(
            "the gateway node has ended; give it the server's token with --token or POLAR_TOKEN. \
             Unless the server was given one at its start, it is in {} on its machine",
            token::place()
        )
    });
    let help = help.unwrap_or_else(|| "the gateway node has ended".to_owned());
    anyhow::Error::new(error).context(help)
}

/// Starts a server; `--port` is said where its port is taken.
pub(crate) async fn start_server(config: ServerConfig) -> Result<ServerHandle> {
    let address = config.bind;
    Server::start(config).await.map_err(|error| {
        let is_taken = matches!(
            &error,
            StartError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse
        );
        match is_taken {
            true => taken(address, "--port"),
            false => anyhow::Error::new(error).context("start the rollout server"),
        }
    })
}

/// Starts a node. `flag` names what chose an address, for where it is taken.
pub(crate) async fn start_node(
    config: NodeConfig,
    flag: impl FnOnce(SocketAddr) -> &'static str,
) -> Result<Node> {
    Node::start(config).await.map_err(|error| {
        if let NodeError::Io { target, error: cause, .. } = &error
            && cause.kind() == ErrorKind::AddrInUse
            && let Ok(address) = target.parse()
        {
            return taken(address, flag(address));
        }
        anyhow::Error::new(error).context("start the gateway node")
    })
}

/// Says that a port is taken, in place of the operating system.
pub(crate) fn taken(address: SocketAddr, flag: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{address} is used by another process; choose another port with {flag}, or 0 for a free one"
    )
}

/// Lets a node's running sessions end for a while, and says so. A signal cuts that short,
/// and another one the removal of what is left.
pub(crate) async fn wind_down(
    node: Node,
    grace: Duration,
    interrupts: &mut Interrupts,
) -> Result<()> {
    node.drain(grace);
    let mut held = node.held();
    let count = held.borrow().len();
    if count > 0 {
        let sessions = if count == 1 { "session" } else { "sessions" };
        say(&format!(
            "waiting up to {} s for {count} {sessions} to end; Ctrl-C again ends them now",
            grace.as_secs()
        ));
        tokio::select! {
            // Over in time, or not, or no longer there to be asked.
            _ = tokio::time::timeout(grace, held.wait_for(Vec::is_empty)) => {}
            _ = interrupts.next() => say("ending what runs; a next node starts it anew"),
        }
    }
    interrupts.unless_again(node.shutdown(Duration::ZERO)).await
}

/// Tells of the end, which scripts that read stdout do not wait for.
pub(crate) fn say(text: &str) {
    // Nothing is left to do when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Where a node keeps its part of the state.
pub(crate) fn node_folder(state: &Path) -> PathBuf {
    state.join("node")
}

/// What a node is told, in the user's terms.
pub(crate) struct NodeSettings {
    pub(crate) node_id: String,
    pub(crate) server: Option<ServerAddress>,
    pub(crate) state: PathBuf,
    pub(crate) gateway_listen: SocketAddr,
    /// Where sessions are opened by hand, and the token that it takes.
    pub(crate) control: Option<(SocketAddr, String)>,
    pub(crate) concurrency: u32,
    pub(crate) stages: StageArgs,
    pub(crate) isolation: Isolation,
    /// What tasks may have shown of this machine.
    pub(crate) allow_mounts: Vec<AllowedMount>,
    pub(crate) engines: NodeEngines,
}

pub(crate) async fn node_config(settings: NodeSettings) -> Result<NodeConfig> {
    paths::make_private(&settings.state)?;
    // Without a server no session runs here, so no sandbox has to work.
    let providers = match settings.server {
        Some(_) => working_providers(&settings).await?,
        None => Vec::new(),
    };
    let (control_listen, control_token) = settings.control.unzip();
    Ok(NodeConfig {
        node_id: settings.node_id.parse().context("--node-id")?,
        server: settings.server,
        state_dir: settings.state,
        cache_dir: paths::cache()?,
        slots: settings.stages.slots(settings.concurrency)?,
        prepull: settings.stages.prepull,
        warm: settings.stages.warm,
        gateway_listen: settings.gateway_listen,
        control_listen,
        control_token,
        gateway: GatewayConfig::default(),
        engines: settings.engines.engines,
        engine_options: settings.engines.options,
        providers,
        keep_free_mb: settings.stages.keep_free_mb,
        sandbox_memory_mb: settings.stages.sandbox_memory_mb,
        output_limit: OUTPUT_LIMIT,
    })
}

/// The sandboxes that work here. The local one must.
async fn working_providers(settings: &NodeSettings) -> Result<Vec<Arc<dyn SandboxProvider>>> {
    let mut working = Vec::new();
    let NodeSettings { isolation, node_id, state, allow_mounts, .. } = settings;
    for provider in providers(*isolation, node_id, state, allow_mounts).await? {
        match provider.check().await {
            Ok(()) => working.push(provider),
            Err(error) if provider.kind() == "local" => {
                bail!(
                    "{error}. To run trusted agents without isolation, say --local-isolation \
                     process"
                );
            }
            Err(error) => tracing::info!(kind = provider.kind(), %error, "sandbox left out"),
        }
    }
    Ok(working)
}

/// What a server is told that keeps its state in a folder beside a node's.
pub(crate) fn server_config(bind: SocketAddr, state: &Path, token: &Token) -> ServerConfig {
    let mut config = ServerConfig::new(state.join("server"));
    config.bind = bind;
    config.control_token = Some(token.secret.clone());
    config.control_token_place = token.kept_in.as_ref().map(|_| token::place());
    config.known = Known {
        harnesses: HarnessAdapter::names().into_iter().map(str::to_owned).collect(),
        harness_problems: Some(HarnessAdapter::problems_of),
        default_image: None,
    };
    config
}

/// Every kind of sandbox, whether it works here or not.
pub(crate) async fn providers(
    isolation: Isolation,
    node_id: &str,
    state: &Path,
    allow_mounts: &[AllowedMount],
) -> Result<Vec<Arc<dyn SandboxProvider>>> {
    let allowed_mounts = allow_mounts.to_vec();
    let isolation = match isolation {
        Isolation::Bubblewrap => LocalIsolation::Bubblewrap,
        Isolation::Process => LocalIsolation::Process,
        Isolation::Auto => match bubblewrap_problem().await? {
            None => LocalIsolation::Bubblewrap,
            Some(_) => LocalIsolation::Process,
        },
    };
    let config = LocalConfig {
        isolation,
        allowed_mounts: allowed_mounts.clone(),
        ..LocalConfig::new(node_id, state)
    };
    let by_engine = |config: DockerConfig| {
        let allowed_mounts = allowed_mounts.clone();
        Arc::new(DockerProvider::new(DockerConfig { allowed_mounts, ..config }))
    };
    let docker = by_engine(DockerConfig::new(node_id, state));
    let podman = by_engine(DockerConfig::podman(node_id, state));
    let apptainer = ApptainerConfig {
        image_cache: paths::cache()?.join("apptainer-images"),
        allowed_mounts,
        ..ApptainerConfig::new(node_id, state)
    };
    Ok(vec![
        Arc::new(LocalProvider::new(config)?),
        docker,
        podman,
        Arc::new(ApptainerProvider::new(apptainer)?),
    ])
}

/// Why bubblewrap does not work here; `None` when it does.
pub(crate) async fn bubblewrap_problem() -> Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let provider = LocalProvider::new(LocalConfig::new("probe", folder.path()))?;
    Ok(provider.check().await.err().map(|error| error.to_string()))
}
