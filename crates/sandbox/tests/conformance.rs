//! The local provider against the suite, with bubblewrap and without.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod suite;

use polar_sandbox::{LocalConfig, LocalIsolation, LocalProvider, SandboxProvider};
use std::path::Path;
use suite::ground::{Ground, Traits, node_of};

/// Connects by what a Debian without anything installed has.
const CONNECT: &str =
    r#"exec bash -c 'exec 3<>"/dev/tcp/$1/$2" && cat >&3 && cat <&3' sh "$1" "$2""#;

fn provider(state: &Path, isolation: LocalIsolation) -> (Box<dyn SandboxProvider>, Traits) {
    let config = LocalConfig {
        isolation,
        helper: Some(env!("CARGO_BIN_EXE_polar-sandbox-helper").into()),
        ..LocalConfig::new(node_of(state), state.join("state"))
    };
    let isolated = isolation == LocalIsolation::Bubblewrap;
    let traits = Traits {
        image: None,
        isolated,
        dies_with_node: isolated,
        connect: CONNECT,
        clean_up: |_| (),
    };
    (Box::new(LocalProvider::new(config).unwrap()), traits)
}

mod bubblewrap {
    use super::*;

    async fn ground() -> Ground {
        let ground = Ground::new(|state| provider(state, LocalIsolation::Bubblewrap)).await;
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
        suite::sweep_after_a_kill(ground().await, "bubblewrap::made_and_removed").await;
    }
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
        read_only_folders_are_shown_at_their_path
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
}
