//! Podman, by its socket, against the suite. Needs Podman and a statically linked busybox,
//! of which the tests make their image. Meant to be run without root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod suite;

use polar_sandbox::{DockerConfig, DockerProvider, SandboxProvider};
use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use suite::ground::{Ground, LONGEST, Traits, helper, node_of, within};
use tokio::sync::OnceCell;

const IMAGE: &str = "localhost/polar-sandbox-test:busybox";

/// Podman with a storage that needs no setting up of the machine's.
fn podman() -> Command {
    static STORAGE: LazyLock<PathBuf> = LazyLock::new(|| {
        let file = std::env::temp_dir()
            .join(format!("polar-podman-storage-{}.conf", rustix::process::getuid().as_raw()));
        let content = "[storage]\ndriver = \"overlay\"\n[storage.options.overlay]\n\
             mount_program = \"/usr/bin/fuse-overlayfs\"\n";
        std::fs::write(&file, content).unwrap();
        file
    });
    let mut podman = Command::new("podman");
    podman.arg("--log-level=error").env("CONTAINERS_STORAGE_CONF", &*STORAGE);
    podman
}

/// A service that ends by itself when nobody has asked it anything for a minute.
static SERVICE: LazyLock<(PathBuf, Child)> = LazyLock::new(|| {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, Into::into);
    let socket = folder.join(format!("polar-test-{}.sock", std::process::id()));
    let serve = format!("unix://{}", socket.display());
    let service = podman()
        .args(["system", "service", "--time=60", &serve])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Podman is missing: tests/podman/install.sh installs it");
    let deadline = Instant::now() + LONGEST;
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline, "Podman's service does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    (socket, service)
});

fn provider(state: &Path) -> (Box<dyn SandboxProvider>, Traits) {
    let config = DockerConfig {
        helper: Some(helper()),
        socket: SERVICE.0.clone(),
        allowed_mounts: suite::ground::allowed(state),
        ..DockerConfig::podman(node_of(state), state.join("state"))
    };
    let provider = DockerProvider::new(config);
    let traits = Traits {
        image: Some(IMAGE.into()),
        isolated: true,
        limits: false,
        closes_network: false,
        dies_with_node: false,
        connect: suite::busybox::CONNECT,
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
    let list = podman().args(["ps", "-aq", "--filter", &label]).output().unwrap();
    let ids = String::from_utf8(list.stdout).unwrap();
    let _ = podman().args(["rm", "-f", "-t", "0"]).args(ids.lines()).output();
}

fn make_image() {
    if podman().args(["image", "exists", IMAGE]).status().unwrap().success() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (root, archive) = (folder.path().join("root"), folder.path().join("image.tar"));
    suite::busybox::make_root(&root);
    let mut tar = tar::Builder::new(std::fs::File::create(&archive).unwrap());
    tar.follow_symlinks(false);
    tar.append_dir_all(".", &root).unwrap();
    tar.finish().unwrap();
    let import = podman().arg("import").arg(&archive).arg(IMAGE).output().unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
}

isolated_conformance! { ground }

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_as_the_user_asked_for_in_folders_of_theirs() {
    let ground = ground().await;
    let mut spec = ground.spec("user");
    spec.user = Some("1234:2345".into());
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let said = ground.sh(&*sandbox, "id -u; id -g; touch here ~/there /tmp/x && echo made").await;
    assert_eq!(said, "1234\n2345\nmade\n");
    within(sandbox.destroy()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_that_is_not_to_be_had_is_said_with_how_to_get_it() {
    let ground = ground().await;
    let mut spec = ground.spec("no-image");
    spec.image = Some("localhost:9/no/such-image".into());
    let problem = within(ground.provider.create(spec)).await.err().unwrap().to_string();
    assert!(problem.contains("podman pull localhost:9/no/such-image"), "{problem}");
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
}

#[tokio::test]
async fn missing_service_is_said_with_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = DockerConfig::podman("node", folder.path());
    let config =
        DockerConfig { socket: "/no/podman.sock".into(), helper: Some(helper()), ..config };
    let problem = DockerProvider::new(config).check().await.unwrap_err();
    assert!(problem.retryable);
    assert!(problem.message.contains("no Podman daemon at /no/podman.sock"), "{problem}");
    assert!(problem.message.contains("podman system service"), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_sweep_after_a_kill() {
    suite::sweep_after_a_kill(ground().await, "made_and_removed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_sweep_spares_other_nodes() {
    let ground = ground().await;
    let other = ground.dir.path().join("other").join(node_of(ground.dir.path()));
    let (other, _) = provider(&other);
    suite::sweep_spares_other_nodes(ground, other).await;
}
