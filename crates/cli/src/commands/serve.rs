//! `polar up`, `polar rollout-server` and `polar gateway`: what runs until it is told
//! to end.

use crate::api::base_url;
use crate::args::{GatewayNode, RolloutServer, Up};
use crate::engines;
use crate::interrupt::Interrupts;
use crate::stack::{self, NodeSettings, Stack, StackConfig};
use crate::{paths, token};
use anyhow::{Context, Result};
use polar_node::ServerAddress;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

pub(crate) async fn up(args: Up) -> Result<()> {
    let token = token::of_listener(args.token)?;
    let kept_in = token.kept_in.clone();
    let engines = engines::connect_engines(&args.engine).await?;
    let model = engines.model();
    let config = StackConfig {
        api: SocketAddr::new(args.host, args.port),
        token,
        state: paths::state(args.state)?,
        upload_folders: args.upload_folders,
        node: args.node,
    };
    let grace = Duration::from_secs(args.grace_seconds.into());
    let stack = Stack::start(config, engines).await?;
    announce(&format!(
        "control API  {}\nproxy        http://{}\nmodel        {model}\nstate        {}{}",
        stack.api_url(),
        stack.proxy(),
        stack.state().display(),
        token_line(kept_in.as_deref()),
    ))?;
    let mut interrupts = Interrupts::listen()?;
    let ended = interrupted_or(&mut interrupts, stack.refused()).await;
    stack.wind_down(grace, &mut interrupts).await?;
    ended
}

pub(crate) async fn rollout_server(args: RolloutServer) -> Result<()> {
    let token = token::of_listener(args.token)?;
    let state = paths::state(args.state)?;
    let mut config = stack::server_config(SocketAddr::new(args.host, args.port), &state, &token);
    let state = config.data.clone();
    paths::make_private(&state)?;
    config.known.default_image = args.default_image;
    config.upload_folders = args.upload_folders;
    config.limits.lease_ttl = Duration::try_from_secs_f64(args.lease_seconds)
        .context("--lease-seconds: must be a number of seconds above 0")?;
    let server = stack::start_server(config).await?;
    announce(&format!(
        "control API  http://{}\nstate        {}{}",
        server.addr(),
        state.display(),
        token_line(token.kept_in.as_deref()),
    ))?;
    let mut interrupts = Interrupts::listen()?;
    interrupts.next().await;
    stack::say("finishing the requests in progress; Ctrl-C again ends them now");
    interrupts.unless_again(server.shutdown()).await
}

pub(crate) async fn gateway(args: GatewayNode) -> Result<()> {
    let token = token::of_node(args.rollout_server.as_deref(), args.token)?;
    let engines = engines::connect_engines(&args.engine).await?;
    let model = engines.model();
    let control = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), args.control_port);
    let server = args.rollout_server.map(|address| ServerAddress {
        url: base_url(&address),
        token: Some(token.secret.clone()),
    });
    let folder = stack::node_folder(&paths::state(args.state)?);
    let config = stack::node_config(NodeSettings {
        node_id: paths::node_id(args.node_id, &folder)?,
        server,
        state: folder,
        gateway_listen: SocketAddr::new(args.host, args.port),
        control: Some((control, token.secret)),
        concurrency: args.concurrency,
        stages: args.stages,
        isolation: args.local_isolation,
        allow_mounts: args.allow_mounts,
        engines,
    })
    .await?;
    let proxy = config.gateway_listen;
    let node = stack::start_node(config, |taken| match taken == proxy {
        true => "--port",
        false => "--control-port",
    })
    .await?;
    let mut text = format!("proxy        http://{}\nmodel        {model}", node.gateway_address());
    if let Some(control) = node.control_address() {
        text.push_str(&format!("\ncontrol      http://{control}"));
    }
    text.push_str(&token_line(token.kept_in.as_deref()));
    announce(&text)?;
    let grace = Duration::from_secs(args.grace_seconds.into());
    let mut interrupts = Interrupts::listen()?;
    let ended = interrupted_or(&mut interrupts, stack::refused(&node)).await;
    stack::wind_down(node, grace, &mut interrupts).await?;
    ended
}

/// Says where the token is, unless whoever gave it knows.
fn token_line(kept_in: Option<&Path>) -> String {
    kept_in.map_or_else(String::new, |file| format!("\ntoken        in {}", file.display()))
}

fn announce(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Returns on Ctrl-C or SIGTERM, or with the error that comes before.
async fn interrupted_or(
    interrupts: &mut Interrupts,
    error: impl Future<Output = anyhow::Error>,
) -> Result<()> {
    tokio::select! {
        _ = interrupts.next() => Ok(()),
        error = error => Err(error),
    }
}

/// Returns on Ctrl-C or SIGTERM.
pub(crate) async fn until_interrupted() -> Result<()> {
    Interrupts::listen()?.next().await;
    Ok(())
}
