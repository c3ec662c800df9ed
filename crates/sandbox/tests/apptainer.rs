//! The Apptainer provider against the suite. Needs Apptainer and a statically linked
//! busybox, of which the tests make their images.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod suite;

use polar_sandbox::{ApptainerConfig, ApptainerProvider, ExecEnd, SandboxProvider, SandboxSpec};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use suite::ground::{Ground, Traits, helper, may_make_cgroups, node_of, within};

/// Images, made once for all tests of this process and those that it starts.
static IMAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(folder) = std::env::var_os("POLAR_TEST_IMAGES") {
        return folder.into();
    }
    let uid = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("polar-apptainer-images-{uid}"));
    match std::fs::create_dir(&folder) {
        // Of an earlier run, or one that makes them now.
        Err(problem) => assert_eq!(problem.kind(), std::io::ErrorKind::AlreadyExists),
        Ok(()) => make_images(&folder),
    }
    let deadline = std::time::Instant::now() + suite::ground::LONGEST;
    while !folder.join("made").exists() {
        assert!(std::time::Instant::now() < deadline, "remove {} and try again", folder.display());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    folder
});

fn provider(state: &Path) -> (Box<dyn SandboxProvider>, Traits) {
    let config = ApptainerConfig {
        helper: Some(helper()),
        image_cache: IMAGES.join("cache"),
        allowed_mounts: suite::ground::allowed(state),
        ..ApptainerConfig::new(node_of(state), state.join("state"))
    };
    let traits = Traits {
        image: Some(IMAGES.join("busybox.sif").display().to_string()),
        isolated: true,
        limits: may_make_cgroups(),
        closes_network: true,
        dies_with_node: true,
        connect: suite::busybox::CONNECT,
        clean_up: |_| (),
    };
    (Box::new(ApptainerProvider::new(config).unwrap()), traits)
}

async fn ground() -> Ground {
    let ground = Ground::new(provider).await;
    ground.provider.check().await.unwrap();
    ground
}

/// A busybox in every form that an image may have.
fn make_images(folder: &Path) {
    let root = folder.join("root");
    suite::busybox::make_root(&root);
    // What an image brings along, for the sandbox to take over.
    std::fs::create_dir_all(root.join("workspace/of/image")).unwrap();
    std::fs::write(root.join("workspace/of/image/file"), "from the image\n").unwrap();
    apptainer(&["build", "--sandbox"], &folder.join("folder"), root.to_str().unwrap());
    std::fs::write(
        folder.join("folder/.singularity.d/env/91-environment.sh"),
        "export FROM_IMAGE=image\nexport PATH=/usr/local/bin:/bin\nexport LD_LIBRARY_PATH=/of/image\n",
    )
    .unwrap();
    let plain = folder.join("folder");
    apptainer(&["build"], &folder.join("busybox.sif"), plain.to_str().unwrap());
    suite::archives::docker(&root, &folder.join("docker.tar"));
    suite::archives::oci(&root, &folder.join("oci.tar"));
    std::fs::write(folder.join("made"), "").unwrap();
}

fn apptainer(arguments: &[&str], target: &Path, source: &str) {
    let mut command = Command::new("apptainer");
    let made = command.arg("--silent").args(arguments).arg(target).arg(source).output();
    let made = made.expect("Apptainer is missing: tests/apptainer/install.sh installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

isolated_conformance! { ground }

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_an_image_is_taken() {
    let ground = ground().await;
    let forms = ["folder", "busybox.sif", "docker.tar", "oci.tar"];
    let named = forms.map(|form| IMAGES.join(form).display().to_string());
    let with_scheme = [format!("docker-archive:{}", named[2]), format!("oci-archive:{}", named[3])];
    for (number, image) in named.into_iter().chain(with_scheme).enumerate() {
        let image = Some(image);
        let spec = SandboxSpec { image: image.clone(), ..ground.spec(&format!("form-{number}")) };
        let sandbox = within(ground.provider.create(spec)).await.unwrap();
        let said = ground.sh(&*sandbox, "cat of/image/file; id -u").await;
        let own = rustix::process::getuid().as_raw();
        assert_eq!(said, format!("from the image\n{own}\n"), "{image:?}");
        within(sandbox.destroy()).await.unwrap();
    }
}

/// The kernel's own overlay, as Apptainer mounts it, fails with EIO at some of this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_image_can_be_changed_and_removed_and_stay_so() {
    let ground = ground().await;
    let sandbox = ground.sandbox("written").await;
    let change = "rm -r /usr/bin && mkdir /usr/bin && echo new >/usr/bin/file && \
        mv /etc /etc2 2>/dev/null || mv /usr /usr2; echo more >>/bin/own && rm /bin/vi && \
        rm -r of && echo here >file";
    ground.sh(&*sandbox, change).await;
    let seen = "cat /usr2/bin/file /usr/bin/file 2>/dev/null; cat /bin/own; ls /bin/vi; ls";
    let seen = ground.run(&*sandbox, ground.script(seen)).await;
    assert_eq!(seen.stdout, "new\nmore\nfile\n");
    within(sandbox.destroy()).await.unwrap();
    // None of it reached the image.
    let next = ground.sandbox("next").await;
    assert_eq!(
        ground.sh(&*next, "ls /bin/vi /usr/bin; cat of/image/file").await,
        "/bin/vi\n\n/usr/bin:\nfrom the image\n"
    );
    within(next.destroy()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_of_the_image_is_the_commands_and_apptainers_own_is_not() {
    let ground = ground().await;
    let mut spec = ground.spec("env-of-image");
    spec.env.insert("FROM_IMAGE".into(), "of the spec".into());
    for (spec, from_image) in [(ground.spec("image-env"), "image"), (spec, "of the spec")] {
        let sandbox = within(ground.provider.create(spec)).await.unwrap();
        let all = ground.sh(&*sandbox, "env").await;
        for line in [
            &format!("FROM_IMAGE={from_image}"),
            "PATH=/usr/local/bin:/bin",
            "LD_LIBRARY_PATH=/of/image",
            "HOME=/home/polar",
        ] {
            assert!(all.lines().any(|found| found == line), "no {line} in\n{all}");
        }
        assert!(!all.contains("APPTAINER") && !all.contains("SINGULARITY"), "{all}");
        within(sandbox.destroy()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_that_is_not_to_be_had_is_said_with_what_to_do() {
    let ground = ground().await;
    let text = ground.dir.path().join("text");
    std::fs::write(&text, "not an image").unwrap();
    let broken = ground.dir.path().join("broken.sif");
    let mut sif = std::fs::read(IMAGES.join("busybox.sif")).unwrap();
    sif.truncate(50_000);
    std::fs::write(&broken, sif).unwrap();
    let cases = [
        ("debian:12", "docker://debian:12"),
        ("/no/such/image.sif", "cannot be read on this node"),
        (text.to_str().unwrap(), "neither a SIF file nor an archive"),
        (broken.to_str().unwrap(), "could not be unpacked"),
        // A folder of the node that nobody meant as an image would be shown to an agent.
        ("/", "apptainer build --sandbox"),
        ("/etc", "apptainer build --sandbox"),
    ];
    for (image, said) in cases {
        let spec = SandboxSpec { image: Some(image.into()), ..ground.spec("no-image") };
        let problem = within(ground.provider.create(spec)).await.err().unwrap();
        assert!(problem.message.contains(said), "{image}: {problem}");
        assert!(problem.message.contains("`image`") && !problem.retryable, "{problem}");
    }
    let spec = SandboxSpec { image: None, ..ground.spec("no-image") };
    let problem = within(ground.provider.create(spec)).await.err().unwrap();
    assert!(problem.message.contains("needs an `image`"), "{problem}");
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
    assert!(!ground.spec("no-image").host_dir.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_images_are_unpacked_once_and_outdated_ones_removed() {
    let mut ground = Ground::new(|state| {
        let (_, traits) = provider(state);
        let config = ApptainerConfig {
            helper: Some(helper()),
            ..ApptainerConfig::new(node_of(state), state.join("state"))
        };
        (Box::new(ApptainerProvider::new(config).unwrap()), traits)
    })
    .await;
    let cache = ground.dir.path().join("state/images");
    let unpacked = || {
        let entries = std::fs::read_dir(&cache).unwrap().flatten();
        entries.filter(|entry| entry.file_type().unwrap().is_dir()).count()
    };
    let image = ground.dir.path().join("image.sif");
    std::fs::copy(IMAGES.join("busybox.sif"), &image).unwrap();
    let create = async |name: &str| {
        let named = Some(image.display().to_string());
        let spec = SandboxSpec { image: named, ..ground.spec(name) };
        within(ground.provider.create(spec)).await.unwrap()
    };
    let (first, second) = tokio::join!(create("first"), create("second"));
    assert_eq!(unpacked(), 1);
    // As an update of the image puts it there.
    std::fs::copy(IMAGES.join("busybox.sif"), ground.dir.path().join("new")).unwrap();
    std::fs::rename(ground.dir.path().join("new"), &image).unwrap();
    let third = create("third").await;
    assert_eq!(unpacked(), 2);
    // A process that was killed while it unpacked.
    std::fs::create_dir_all(cache.join("unfinished-0/image/folder")).unwrap();
    // What is still in use stays.
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
    assert_eq!(unpacked(), 2);
    assert_eq!(ground.sh(&*first, "echo works").await, "works\n");
    for sandbox in [first, second, third] {
        within(sandbox.destroy()).await.unwrap();
    }
    let state = ground.dir.path();
    let config = ApptainerConfig::new(node_of(state), state.join("state"));
    let later = ApptainerConfig { helper: Some(helper()), ..config };
    let later = ApptainerProvider::new(later).unwrap();
    within(later.sweep(&HashSet::new())).await.unwrap();
    assert_eq!(unpacked(), 2, "another process uses it");
    drop(std::mem::replace(&mut ground.provider, Box::new(later)));
    within(ground.provider.sweep(&HashSet::new())).await.unwrap();
    assert_eq!(unpacked(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_apptainer_sandboxes_cannot_do_is_refused() {
    let ground = ground().await;
    type Change = fn(&mut SandboxSpec);
    let changes: [(&str, Change); 7] = [
        ("gpus", |spec| spec.gpus = Some(1)),
        ("user", |spec| spec.user = Some("nobody".into())),
        ("workdir", |spec| spec.workdir = "relative".into()),
        ("workdir", |spec| spec.workdir = "/".into()),
        ("workdir", |spec| spec.workdir = "/proc/self".into()),
        ("workdir", |spec| spec.workdir = "/work/../etc".into()),
        ("workdir", |spec| spec.workdir = "/home".into()),
    ];
    for (field, change) in changes {
        let mut spec = ground.spec("refused");
        change(&mut spec);
        let problem = within(ground.provider.create(spec)).await.err().unwrap();
        assert!(problem.message.contains(&format!("`{field}`")), "{problem}");
        assert!(!problem.retryable);
    }
}

#[tokio::test]
async fn what_is_missing_is_said_with_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = ApptainerConfig::new("node", folder.path());
    let check = async |config: ApptainerConfig| {
        let provider = ApptainerProvider::new(config).unwrap();
        provider.check().await.unwrap_err().to_string()
    };
    let config = ApptainerConfig { helper: Some(helper()), ..config };
    let problem = check(ApptainerConfig { apptainer: "/no/apptainer".into(), ..config.clone() });
    let problem = problem.await;
    assert!(problem.contains("/no/apptainer") && problem.contains("apptainer.org"), "{problem}");
    let problem = check(ApptainerConfig { apptainer: "/bin/false".into(), ..config.clone() }).await;
    assert!(problem.contains("user namespaces") && problem.contains("/dev/fuse"), "{problem}");
    let problem = check(ApptainerConfig { helper: Some("/no/polar".into()), ..config }).await;
    assert!(problem.contains("`helper`"), "{problem}");
}

/// What serves a sandbox's files is outside of it, and must go with the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promise_7_what_serves_files_ends_with_the_command() {
    let ground = ground().await;
    let sandbox = ground.sandbox("served").await;
    let place = ground.dir.path().display().to_string();
    let marked = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let files = entries.map(|entry| entry.path().join("environ"));
        let marked = files.filter_map(|file| std::fs::read(file).ok());
        marked.filter(|env| String::from_utf8_lossy(env).contains(&place)).count()
    };
    for timeout in [1, 60] {
        let mut exec = ground.script("sleep 3");
        exec.timeout = std::time::Duration::from_secs(timeout);
        let end = ground.run(&*sandbox, exec).await.end;
        assert_eq!(end, if timeout == 1 { ExecEnd::TimedOut } else { ExecEnd::Exited(0) });
        assert_eq!(marked(), 0);
    }
    within(sandbox.destroy()).await.unwrap();
}
