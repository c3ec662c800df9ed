//! The Docker provider against the suite. Needs a Docker daemon on this machine, root,
//! and a statically linked busybox, of which the tests make their image.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod suite;

use polar_sandbox::{DockerConfig, DockerProvider, ExecEnd, SandboxProvider, SandboxSpec};
use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use suite::ground::{Ground, Token, Traits, helper, node_of, within};
use tokio::sync::OnceCell;

const IMAGE: &str = "polar-sandbox-test:busybox";

fn provider(state: &Path, use_helper: bool) -> (Box<dyn SandboxProvider>, Traits) {
    let config = DockerConfig {
        helper: Some(helper()),
        use_helper,
        allowed_mounts: suite::ground::allowed(state),
        ..DockerConfig::new(node_of(state), state.join("state"))
    };
    let provider = DockerProvider::new(config);
    let traits = Traits {
        image: Some(IMAGE.into()),
        isolated: true,
        limits: true,
        closes_network: true,
        dies_with_node: false,
        connect: suite::busybox::CONNECT,
        clean_up,
    };
    (Box::new(provider), traits)
}

async fn ground() -> Ground {
    ground_with(false).await
}

async fn ground_with(use_helper: bool) -> Ground {
    static IMAGE_MADE: OnceCell<()> = OnceCell::const_new();
    let ground = Ground::new(|state| provider(state, use_helper)).await;
    ground.provider.check().await.unwrap();
    IMAGE_MADE.get_or_init(async || make_image()).await;
    ground
}

fn clean_up(node: &str) {
    let label = format!("label=polar.node={node}");
    let list = Command::new("docker").args(["ps", "-aq", "--filter", &label]).output().unwrap();
    let ids = String::from_utf8(list.stdout).unwrap();
    let _ = Command::new("docker").args(["rm", "-f"]).args(ids.lines()).output();
}

/// An image with nothing but busybox.
fn make_image() {
    let made = Command::new("docker").args(["image", "inspect", IMAGE]).output().unwrap();
    if made.status.success() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    suite::busybox::make_root(root.path());
    let mut tar = Command::new("tar")
        .args(["--create", "--directory"])
        .arg(root.path())
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let import = Command::new("docker")
        .args(["import", "-", IMAGE])
        .stdin(tar.stdout.take().unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(import.success() && tar.wait().unwrap().success());
}

isolated_conformance! { ground }

/// What users other than root get.
mod through_helper {
    use super::*;

    async fn ground() -> Ground {
        ground_with(true).await
    }

    conformance! { ground:
        open_network_reaches_gateway_and_more
        promise_6_timeout_ends_the_whole_tree
        promise_7_destroy_ends_everything_and_may_be_repeated
        promise_9_closed_network_reaches_only_the_gateway
        promise_9_no_privileges_inside
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn user_of_the_container_need_not_be_root() {
        let ground = ground().await;
        let mut spec = ground.spec("helper-user");
        spec.user = Some("1234:2345".into());
        // Longer than a socket's path may be.
        spec.host_dir = spec.host_dir.join("long".repeat(30));
        let sandbox = within(ground.provider.create(spec)).await.unwrap();
        let port = sandbox.gateway_url().rsplit_once(':').unwrap().1.parse().unwrap();
        let answer = ground.connect(&*sandbox, "127.0.0.1", port).await.unwrap();
        assert!(answer.ends_with("this is gateway\n"), "{answer}");
        within(sandbox.destroy()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_as_the_user_asked_for_in_folders_of_theirs() {
    let ground = ground().await;
    let mut spec = ground.spec("user");
    spec.user = Some("1234:2345".into());
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let said = ground.sh(&*sandbox, "id -u; id -g; touch here ~/there /tmp/x && echo made").await;
    assert_eq!(said, "1234\n2345\nmade\n");
    within(sandbox.write_file("a/b", b"written", false)).await.unwrap();
    assert_eq!(ground.sh(&*sandbox, "cat a/b; stat -c %u a/b; rm -r a").await, "written1234\n");
    within(sandbox.destroy()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_6_a_killed_container_is_no_end_of_its_command() {
    let ground = ground().await;
    let label = format!("label=polar.node={}", node_of(ground.dir.path()));
    suite::sandbox_killed_from_outside(ground, |_| {
        let kill = format!("docker kill $(docker ps -q --filter {label})");
        assert!(Command::new("sh").args(["-c", &kill]).output().unwrap().status.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processors_are_limited_and_gpus_that_are_not_there_refused() {
    let ground = ground().await;
    let spec = SandboxSpec { cpus: Some(0.5), ..ground.spec("cpus") };
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let ask = "docker inspect --format {{.HostConfig.NanoCpus}} $(docker ps -q --filter label=polar.node=";
    let ask = format!("{ask}{})", node_of(ground.dir.path()));
    let cpus = Command::new("sh").args(["-c", &ask]).output().unwrap();
    assert_eq!(String::from_utf8(cpus.stdout).unwrap(), "500000000\n");
    within(sandbox.destroy()).await.unwrap();
    let spec = SandboxSpec { gpus: Some(1), ..ground.spec("gpus") };
    if let Err(problem) = within(ground.provider.create(spec)).await {
        assert!(problem.message.contains("`gpus`") && !problem.retryable, "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_killed_from_outside_ends_its_command() {
    let ground = ground().await;
    let sandbox = ground.sandbox("killed").await;
    let token = Token::new();
    let exec = ground.script(&format!("exec env sleep {}", token.0));
    let kill = async {
        token.wait_for(|count| count == 1, "did not come up").await;
        clean_up(&node_of(ground.dir.path()));
    };
    let (end, ()) = tokio::join!(within(sandbox.exec(exec)), kill);
    assert!(!matches!(end, Ok(ExecEnd::Exited(code)) if code != 137), "{end:?}");
    assert!(within(sandbox.exec(ground.script("true"))).await.is_err());
    within(sandbox.destroy()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_that_is_not_to_be_had_is_said_with_how_to_get_it() {
    let ground = ground().await;
    let mut spec = ground.spec("no-image");
    spec.image = Some("localhost:9/no/such-image".into());
    let problem = within(ground.provider.create(spec)).await.err().unwrap().to_string();
    assert!(problem.contains("docker pull localhost:9/no/such-image"), "{problem}");
    let mut spec = ground.spec("no-image");
    spec.image = None;
    let problem = within(ground.provider.create(spec)).await.err().unwrap();
    assert!(problem.message.contains("`image`") && !problem.retryable, "{problem}");
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_sweep_after_a_kill() {
    suite::sweep_after_a_kill(ground().await, "made_and_removed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_sweep_spares_other_nodes() {
    let ground = ground().await;
    let other = ground.dir.path().join("other").join(node_of(ground.dir.path()));
    let (other, _) = provider(&other, false);
    suite::sweep_spares_other_nodes(ground, other).await;
}
