//! The local provider against the suite, with bubblewrap and without.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

// Plain processes pass fewer of its tests than bubblewrap.
#[cfg_attr(not(feature = "bubblewrap-tests"), allow(dead_code))]
mod suite;

use polar_sandbox::{LocalConfig, LocalIsolation, LocalProvider, SandboxProvider};
use std::path::Path;
use suite::ground::{Ground, Traits, helper, may_make_cgroups, node_of};

/// Connects by what a Debian without anything installed has.
const CONNECT: &str =
    r#"exec bash -c 'exec 3<>"/dev/tcp/$1/$2" && cat >&3 && cat <&3' sh "$1" "$2""#;

fn provider(state: &Path, isolation: LocalIsolation) -> (Box<dyn SandboxProvider>, Traits) {
    let config = LocalConfig {
        isolation,
        helper: Some(helper()),
        allowed_mounts: suite::ground::allowed(state),
        ..LocalConfig::new(node_of(state), state.join("state"))
    };
    let isolated = isolation == LocalIsolation::Bubblewrap;
    let traits = Traits {
        image: None,
        isolated,
        limits: isolated && may_make_cgroups(),
        closes_network: true,
        dies_with_node: isolated,
        connect: CONNECT,
        clean_up: |_| (),
    };
    (Box::new(LocalProvider::new(config).unwrap()), traits)
}

#[cfg(feature = "bubblewrap-tests")]
mod bubblewrap {
    use super::*;

    async fn ground() -> Ground {
        let ground = Ground::new(|state| provider(state, LocalIsolation::Bubblewrap)).await;
        ground.provider.check().await.unwrap();
        ground
    }

    isolated_conformance! { ground }

    /// As by a build, or an update of the package, under a running node.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_helper_that_is_replaced_or_removed_goes_on_helping() {
        let place = tempfile::tempdir().unwrap();
        let helper = place.path().join("polar");
        std::fs::copy(suite::ground::helper(), &helper).unwrap();
        let ground = Ground::new(|state| {
            let (_, traits) = provider(state, LocalIsolation::Bubblewrap);
            let config = LocalConfig {
                helper: Some(helper.clone()),
                ..LocalConfig::new(node_of(state), state.join("state"))
            };
            (Box::new(LocalProvider::new(config).unwrap()), traits)
        })
        .await;
        let sandbox = ground.sandbox("replaced").await;
        assert_eq!(ground.sh(&*sandbox, "echo before").await, "before\n");
        let other = place.path().join("other");
        std::fs::write(&other, "not a program").unwrap();
        std::fs::rename(&other, &helper).unwrap();
        assert_eq!(ground.sh(&*sandbox, "echo replaced").await, "replaced\n");
        std::fs::remove_file(&helper).unwrap();
        assert_eq!(ground.sh(&*sandbox, "echo removed").await, "removed\n");
        ground.provider.check().await.unwrap();
        suite::ground::within(sandbox.destroy()).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_6_a_killed_monitor_is_no_end_of_its_command() {
        suite::sandbox_killed_from_outside(ground().await, |command| {
            // Of the bubblewraps above it the outermost.
            let (mut monitor, mut process) = (None, command);
            while process > 1 {
                let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
                if status.starts_with("Name:\tbwrap\n") {
                    monitor = Some(process);
                }
                let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t"));
                process = parent.unwrap().parse().unwrap();
            }
            let monitor = monitor.and_then(rustix::process::Pid::from_raw).unwrap();
            rustix::process::kill_process(monitor, rustix::process::Signal::KILL).unwrap();
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_7_sweep_after_a_kill() {
        suite::sweep_after_a_kill(ground().await, "bubblewrap::made_and_removed").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_7_sweep_spares_other_nodes() {
        let ground = ground().await;
        let other = ground.dir.path().join("other").join(node_of(ground.dir.path()));
        let (other, _) = provider(&other, LocalIsolation::Bubblewrap);
        suite::sweep_spares_other_nodes(ground, other).await;
    }
}

#[tokio::test]
async fn what_is_missing_is_said_with_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = LocalConfig::new("node", folder.path());
    let check = async |config: LocalConfig| {
        let provider = LocalProvider::new(config).unwrap();
        provider.check().await.map_err(|problem| problem.to_string())
    };
    let helper = Some(helper());
    let no_program = LocalConfig { bubblewrap: "/no/bwrap".into(), helper, ..config.clone() };
    let problem = check(no_program.clone()).await.unwrap_err();
    assert!(problem.contains("/no/bwrap") && problem.contains("apt-get install bubblewrap"));
    // A bubblewrap that may not make namespaces.
    let no_namespaces = LocalConfig { bubblewrap: "/bin/false".into(), ..no_program.clone() };
    let problem = check(no_namespaces).await.unwrap_err();
    assert!(problem.contains("user namespaces"), "{problem}");
    let no_helper = LocalConfig { helper: Some("/no/polar".into()), ..config };
    let problem = check(no_helper).await.unwrap_err();
    assert!(problem.contains("/no/polar is not there"), "{problem}");
    let plain = LocalConfig { isolation: LocalIsolation::Process, ..no_program };
    assert_eq!(check(plain).await, Ok(()));
}

#[tokio::test]
async fn what_local_sandboxes_cannot_do_is_refused() {
    let ground = Ground::new(|state| provider(state, LocalIsolation::Bubblewrap)).await;
    type Change = fn(&mut polar_sandbox::SandboxSpec);
    let changes: [(&str, Change); 7] = [
        ("image", |spec| spec.image = Some("debian:12".into())),
        ("gpus", |spec| spec.gpus = Some(1)),
        ("user", |spec| spec.user = Some("nobody".into())),
        ("workdir", |spec| spec.workdir = "relative".into()),
        ("workdir", |spec| spec.workdir = "/usr/share/work".into()),
        ("workdir", |spec| spec.workdir = "/work/../etc".into()),
        ("workdir", |spec| spec.workdir = "/home".into()),
    ];
    for (field, change) in changes {
        let mut spec = ground.spec("refused");
        change(&mut spec);
        let problem = ground.provider.create(spec).await.err().unwrap();
        assert!(problem.message.contains(&format!("`{field}`")), "{problem}");
        assert!(!problem.retryable);
    }
}

#[tokio::test]
async fn plain_processes_are_held_to_nothing_and_say_so() {
    let ground = Ground::new(|state| provider(state, LocalIsolation::Process)).await;
    type Change = fn(&mut polar_sandbox::SandboxSpec);
    let mount =
        || polar_sandbox::Mount { source: "/usr".into(), target: "/data".into(), read_only: true };
    let changes: [(&str, Change); 5] = [
        ("cpus", |spec| spec.cpus = Some(1.0)),
        ("memory_mb", |spec| spec.memory_mb = Some(64)),
        ("pids", |spec| spec.pids = Some(64)),
        ("storage_mb", |spec| spec.storage_mb = Some(64)),
        ("gpus", |spec| spec.gpus = Some(1)),
    ];
    for (field, change) in changes {
        let mut spec = ground.spec("refused");
        change(&mut spec);
        let problem = ground.provider.create(spec).await.err().unwrap();
        assert!(problem.message.contains(&format!("`{field}`; leave it out")), "{problem}");
        assert!(problem.message.contains("docker") && !problem.retryable, "{problem}");
    }
    let spec = polar_sandbox::SandboxSpec { mounts: vec![mount()], ..ground.spec("refused") };
    assert!(ground.provider.create(spec).await.err().unwrap().message.contains("`mounts`"));
}

mod process {
    use super::*;

    async fn ground() -> Ground {
        let ground = Ground::new(|state| provider(state, LocalIsolation::Process)).await;
        ground.provider.check().await.unwrap();
        ground
    }

    conformance! { ground:
        command_gets_its_environment_and_folder
        environment_of_the_node_stays_out
        exit_codes_and_signals_are_told
        stdin_is_given_whole_then_closed
        output_is_kept_apart_and_cut_at_its_limit
        files_are_written_as_they_are
        promise_9_a_file_is_written_in_the_place_of_a_link_or_a_pipe
        read_only_folders_are_shown_at_their_path
        commands_run_side_by_side
        promise_6_timeout_ends_the_whole_tree
        promise_7_nothing_outlives_its_command
        promise_7_dropped_command_dies
        promise_7_destroy_ends_everything_and_may_be_repeated
        promise_8_folder_that_is_too_large_is_an_error
        diff_has_every_kind_of_change
        names_are_refused_when_they_cannot_be_kept_apart
        made_and_removed
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_7_sweep_after_a_kill() {
        suite::sweep_after_a_kill(ground().await, "process::made_and_removed").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn promise_7_sweep_spares_other_nodes() {
        let ground = ground().await;
        let other = ground.dir.path().join("other").join(node_of(ground.dir.path()));
        let (other, _) = provider(&other, LocalIsolation::Process);
        suite::sweep_spares_other_nodes(ground, other).await;
    }
}
