//! The Docker provider against the suite. Needs a Docker daemon on this machine, root,
//! and a statically linked busybox, of which the tests make their image.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod suite;

use polar_sandbox::{DockerConfig, DockerProvider, SandboxProvider};
use std::path::Path;
use std::process::{Command, Stdio};
use suite::ground::{Ground, Traits, node_of};
use tokio::sync::OnceCell;

const IMAGE: &str = "polar-sandbox-test:busybox";
const BUSYBOX: &str = "/bin/busybox";
/// Busybox's own, with a limit on waiting.
const CONNECT: &str = r#"exec nc -w 5 "$1" "$2""#;

fn provider(state: &Path) -> (Box<dyn SandboxProvider>, Traits) {
    let provider = DockerProvider::new(DockerConfig::new(node_of(state), state.join("state")));
    let traits = Traits {
        image: Some(IMAGE),
        isolated: true,
        dies_with_node: false,
        connect: CONNECT,
        clean_up,
    };
    (Box::new(provider), traits)
}

async fn ground() -> Ground {
    static IMAGE_MADE: OnceCell<()> = OnceCell::const_new();
    let ground = Ground::new(provider).await;
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
    assert!(
        Path::new(BUSYBOX).exists(),
        "{BUSYBOX} is missing: `apt-get install busybox-static` gives it"
    );
    let root = tempfile::tempdir().unwrap();
    for folder in ["bin", "etc", "proc", "sys", "dev", "tmp", "usr/bin"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    std::fs::copy(BUSYBOX, root.path().join("bin/busybox")).unwrap();
    let tools = Command::new(BUSYBOX).arg("--list").output().unwrap();
    for tool in String::from_utf8(tools.stdout).unwrap().lines() {
        let link = root.path().join("bin").join(tool);
        if !link.exists() {
            std::os::unix::fs::symlink("busybox", link).unwrap();
        }
    }
    std::fs::write(root.path().join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
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

conformance! { ground:
    command_gets_its_environment_and_folder
    environment_of_the_node_stays_out
    exit_codes_and_signals_are_told
    stdin_is_given_whole_then_closed
    output_is_kept_apart_and_cut_at_its_limit
    files_are_written_as_they_are
    read_only_folders_are_shown_at_their_path
    promise_6_timeout_ends_the_whole_tree
    promise_7_nothing_outlives_its_command
    promise_7_dropped_command_dies
    promise_7_destroy_ends_everything_and_may_be_repeated
    promise_8_folder_that_is_too_large_is_an_error
    promise_9_closed_network_reaches_only_the_gateway
    promise_9_sandboxes_do_not_see_each_other_nor_the_host
    promise_9_no_privileges_inside
    diff_has_every_kind_of_change
    names_are_refused_when_they_cannot_be_kept_apart
    made_and_removed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_sweep_after_a_kill() {
    suite::sweep_after_a_kill(ground().await, "made_and_removed").await;
}
