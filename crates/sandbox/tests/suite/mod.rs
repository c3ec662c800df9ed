//! What every provider must do, whatever it is made of.

#[allow(dead_code, reason = "not every provider takes them")]
pub(crate) mod archives;
#[allow(dead_code, reason = "not every provider takes images")]
pub(crate) mod busybox;
pub(crate) mod ground;
pub(crate) mod isolation;
pub(crate) mod limits;

#[allow(unused_imports, reason = "not every provider is built")]
pub(crate) use isolation::*;
#[allow(unused_imports, reason = "not every provider is built")]
pub(crate) use limits::*;

use ground::{Ground, STAY, Token, mounts_below, within};
use polar_sandbox::{Change, Content, ExecEnd, Sandbox, SandboxProvider};
use std::collections::HashSet;
use std::time::Duration;

/// Makes a test of each function for one provider.
#[macro_export]
macro_rules! conformance {
    ($ground:path: $($test:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            suite::$test($ground().await).await;
        }
    )*};
}

/// All of it: what every provider that isolates its sandboxes must do.
#[macro_export]
macro_rules! isolated_conformance {
    ($ground:path) => {
        conformance! { $ground:
            command_gets_its_environment_and_folder
            environment_of_the_node_stays_out
            exit_codes_and_signals_are_told
            stdin_is_given_whole_then_closed
            output_is_kept_apart_and_cut_at_its_limit
            files_are_written_as_they_are
            promise_9_a_file_is_written_in_the_place_of_a_link_or_a_pipe
            read_only_folders_are_shown_at_their_path
            commands_run_side_by_side
            open_network_reaches_gateway_and_more
            promise_6_timeout_ends_the_whole_tree
            promise_7_nothing_outlives_its_command
            promise_7_dropped_command_dies
            promise_7_destroy_ends_everything_and_may_be_repeated
            promise_8_folder_that_is_too_large_is_an_error
            promise_8_memory_limit_kills_and_says_so
            promise_8_pids_limit_stops_a_fork_bomb
            promise_8_storage_limit_stops_filling_the_disk
            promise_8_output_of_a_gigabyte_is_bounded
            promise_9_only_allowed_folders_are_shown
            promise_9_uploads_stay_inside
            promise_9_closed_network_reaches_only_the_gateway
            promise_9_allowed_hosts_are_reached_and_no_others
            promise_9_sandboxes_do_not_see_each_other_nor_the_host
            promise_9_files_open_in_the_node_stay_out
            promise_9_own_files_of_the_user_stay_out
            promise_9_no_privileges_inside
            diff_has_every_kind_of_change
            names_are_refused_when_they_cannot_be_kept_apart
            made_and_removed
        }
    };
}

pub(crate) async fn command_gets_its_environment_and_folder(ground: Ground) {
    let sandbox = ground.sandbox("env").await;
    let mut exec =
        ground.script(r#"echo "$FROM_SPEC,$FROM_EXEC,$BOTH"; pwd; cd; pwd; echo "$LANG,$PATH""#);
    exec.env.insert("FROM_EXEC".into(), "with 'quotes' and\nlines".into());
    exec.env.insert("FROM_SPEC".into(), "changed".into());
    let outcome = ground.run(&*sandbox, exec).await;
    let (workdir, home) = (sandbox.workdir(), sandbox.home());
    let start = format!("changed,with 'quotes' and\nlines,\n{workdir}\n{home}\nC.UTF-8,/usr/local");
    assert!(outcome.stdout.starts_with(&start), "{}", outcome.stdout);
    let mut exec = ground.script("pwd");
    exec.workdir = Some("/workspace/..".into());
    exec.workdir = if ground.traits.isolated { Some("/usr".into()) } else { exec.workdir };
    assert_ne!(ground.run(&*sandbox, exec).await.stdout.trim(), workdir);
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn environment_of_the_node_stays_out(ground: Ground) {
    let sandbox = ground.sandbox("clean").await;
    let all = ground.sh(&*sandbox, "env").await;
    let names: Vec<_> = all.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    for name in ["CARGO_MANIFEST_DIR", "RUST_BACKTRACE", "CARGO", "USER", "SSH_AUTH_SOCK"] {
        assert!(!names.contains(&name), "{name} in {names:?}");
    }
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn exit_codes_and_signals_are_told(ground: Ground) {
    let sandbox = ground.sandbox("codes").await;
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        let outcome = ground.run(&*sandbox, ground.script(script)).await;
        assert_eq!(outcome.end, ExecEnd::Exited(code), "{script}");
    }
    for (script, code) in [("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)] {
        let outcome = ground.run(&*sandbox, ground.script(script)).await;
        assert_eq!(outcome.end, ExecEnd::Exited(code), "{script}");
    }
    let mut exec = ground.script("");
    exec.argv = vec!["no-such-program".into()];
    let outcome = ground.run(&*sandbox, exec).await;
    assert_eq!(outcome.end, ExecEnd::Exited(127), "{}{}", outcome.stdout, outcome.stderr);
    let said = outcome.stdout + &outcome.stderr;
    assert!(said.contains("no-such-program"), "{said}");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn stdin_is_given_whole_then_closed(ground: Ground) {
    let sandbox = ground.sandbox("stdin").await;
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let mut exec = ground.script("cat > copy; wc -c < copy");
    exec.stdin = Some(content.clone());
    assert_eq!(ground.run(&*sandbox, exec).await.stdout.trim(), "3000000");
    let mut exec = ground.script("cat copy");
    exec.output_limit = 1 << 30;
    let path = exec.stdout.clone();
    within(sandbox.exec(exec)).await.unwrap();
    assert!(std::fs::read(path).unwrap() == content, "bytes changed on the way");
    // Without one there is an end at once.
    assert_eq!(ground.sh(&*sandbox, "cat; echo end").await, "end\n");
    // A command that doesn't read it isn't held up.
    let mut exec = ground.script("exit 3");
    exec.stdin = Some(content);
    assert_eq!(ground.run(&*sandbox, exec).await.end, ExecEnd::Exited(3));
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn output_is_kept_apart_and_cut_at_its_limit(ground: Ground) {
    let sandbox = ground.sandbox("output").await;
    let outcome = ground.run(&*sandbox, ground.script("echo out; echo err >&2")).await;
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    let script = "printf 0.5; head -c 4999000 /dev/zero; yes 12 | head -c 999; echo 0.125; \
        echo whole >&2";
    let mut exec = ground.script(script);
    exec.output_limit = 1000;
    let outcome = ground.run(&*sandbox, exec).await;
    assert_eq!(outcome.end, ExecEnd::Exited(0));
    // The end begins within a line, which is not kept: half of it is another number.
    let (begin, end) = outcome.stdout.split_at(500);
    assert!(begin.starts_with("0.5\0") && begin.ends_with('\0'));
    let word = " [cut here: 4999010 bytes dropped]\n";
    assert_eq!(end, word.to_owned() + &"12\n".repeat(164) + "0.125\n");
    assert_eq!(outcome.stderr, "whole\n");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn files_are_written_as_they_are(ground: Ground) {
    let sandbox = ground.sandbox("files").await;
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    within(sandbox.write_file("deep/er/binary file", &bytes, false)).await.unwrap();
    let (workdir, home) = (sandbox.workdir(), sandbox.home());
    let script = format!("{workdir}/run me");
    within(sandbox.write_file(&script, b"#!/bin/sh\necho ran\n", true)).await.unwrap();
    within(sandbox.write_file(&format!("{home}/.config/a"), b"a", false)).await.unwrap();
    within(sandbox.write_file("empty", b"", false)).await.unwrap();
    within(sandbox.write_file("empty", b"now full", false)).await.unwrap();
    let size = ground.sh(&*sandbox, "wc -c < 'deep/er/binary file'").await;
    assert_eq!(size.trim(), "100000");
    assert_eq!(
        ground.sh(&*sandbox, "'./run me'; cat ~/.config/a; cat empty").await,
        "ran\nanow full"
    );
    // Files that were written can be changed and removed by commands.
    ground.sh(&*sandbox, "echo more >> 'deep/er/binary file' && rm -r deep 'run me'").await;
    let exec = ground.script("cat 'deep/er/binary file'");
    assert_eq!(ground.run(&*sandbox, exec).await.end, ExecEnd::Exited(1));
    let problem = within(sandbox.write_file("empty/below", b"", false)).await.unwrap_err();
    assert!(problem.to_string().contains("empty"), "{problem}");
    within(sandbox.destroy()).await.unwrap();
}

/// What lies where a hidden test is written is what an agent left there.
pub(crate) async fn promise_9_a_file_is_written_in_the_place_of_a_link_or_a_pipe(ground: Ground) {
    let sandbox = ground.sandbox("in-place").await;
    let make = "ln -s /dev/null swallows; ln -s other link; echo kept > other; mkfifo pipe; \
        ln -s nowhere dangling; mkdir folder; ln -s folder to-folder";
    ground.sh(&*sandbox, make).await;
    let paths = ["swallows", "link", "pipe", "dangling", "to-folder/file"];
    for path in paths {
        within(sandbox.write_file(path, path.as_bytes(), false)).await.unwrap();
        let look = format!("test -f {path} && ! test -L {path} && cat {path}");
        assert_eq!(ground.sh(&*sandbox, &look).await, path);
    }
    assert_eq!(ground.sh(&*sandbox, "cat other folder/file").await, "kept\nto-folder/file");
    let problem = within(sandbox.write_file("folder", b"", false)).await.unwrap_err();
    assert!(!problem.retryable, "{problem}");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn read_only_folders_are_shown_at_their_path(ground: Ground) {
    let folder = ground.dir.path().join("harness");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), "shown").unwrap();
    let mut spec = ground.spec("shown");
    spec.read_only = vec![folder.clone()];
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    for _ in 0..2 {
        let shown = ground.sh(&*sandbox, &format!("cat {}/file", folder.display())).await;
        assert_eq!(shown, "shown");
    }
    if ground.traits.isolated {
        let exec = ground.script(&format!("echo changed > {}/file", folder.display()));
        assert_ne!(ground.run(&*sandbox, exec).await.end, ExecEnd::Exited(0));
    }
    within(sandbox.destroy()).await.unwrap();
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "shown");
}

pub(crate) async fn commands_run_side_by_side(ground: Ground) {
    let sandbox = ground.sandbox("beside").await;
    let exec = ground.script("touch started; until [ -e go ]; do sleep 0.05; done; echo went");
    let (waiting, ()) = tokio::join!(ground.run(&*sandbox, exec), async {
        ground.sh(&*sandbox, "until [ -e started ]; do sleep 0.05; done").await;
        within(sandbox.write_file("other", b"", false)).await.unwrap();
        ground.sh(&*sandbox, "touch go").await;
    });
    assert_eq!(waiting.stdout, "went\n");
    within(sandbox.destroy()).await.unwrap();
}

/// A command that does everything to be left alone, then waits or ends.
fn hiding(token: &Token, then: &str) -> String {
    // Some shells have a `sleep` of their own, which shows as the shell.
    let sleep = format!("env sleep {}", token.0);
    format!(
        "{sleep} & \
         setsid {sleep} & \
         (setsid sh -c '(setsid {sleep} &) ; {sleep}' >/dev/null 2>&1 &) ; \
         (trap '' TERM HUP INT; {sleep} >/dev/null 2>&1 &) ; \
         {then}"
    )
}

pub(crate) async fn promise_6_timeout_ends_the_whole_tree(ground: Ground) {
    let sandbox = ground.sandbox("timeout").await;
    let token = Token::new();
    let mut exec = ground.script(&hiding(&token, &format!("echo waiting; exec sleep {}", token.0)));
    exec.timeout = Duration::from_secs(4);
    let (outcome, ()) = tokio::join!(
        ground.run(&*sandbox, exec),
        token.wait_for(|count| count >= 6, "not all processes came up")
    );
    assert_eq!(outcome.end, ExecEnd::TimedOut);
    assert_eq!(token.processes(), Vec::<i32>::new(), "alive after the timeout");
    assert_eq!(outcome.stdout, "waiting\n");
    // The sandbox itself goes on.
    assert_eq!(ground.sh(&*sandbox, "echo still here").await, "still here\n");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_7_nothing_outlives_its_command(ground: Ground) {
    let sandbox = ground.sandbox("background").await;
    let token = Token::new();
    let outcome = ground.run(&*sandbox, ground.script(&hiding(&token, "exit 5"))).await;
    assert_eq!(outcome.end, ExecEnd::Exited(5));
    assert_eq!(token.processes(), Vec::<i32>::new(), "alive after the command's end");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_7_dropped_command_dies(ground: Ground) {
    let sandbox = ground.sandbox("dropped").await;
    let token = Token::new();
    let exec = ground.script(&hiding(&token, &format!("exec sleep {}", token.0)));
    tokio::select! {
        end = sandbox.exec(exec) => panic!("ended: {end:?}"),
        () = token.wait_for(|count| count >= 6, "not all processes came up") => {}
    }
    token.wait_for(|count| count == 0, "alive after the command was dropped").await;
    assert_eq!(ground.sh(&*sandbox, "echo still here").await, "still here\n");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_7_destroy_ends_everything_and_may_be_repeated(ground: Ground) {
    let spec = ground.spec("destroyed");
    let sandbox = within(ground.provider.create(spec.clone())).await.unwrap();
    ground.sh(&*sandbox, "mkdir -p ~/locked/in && touch ~/locked/in/file && chmod 500 ~/locked/in && chmod 0 ~/locked").await;
    let token = Token::new();
    let exec = ground.script(&hiding(&token, &format!("exec sleep {}", token.0)));
    let (end, ()) = tokio::join!(within(sandbox.exec(exec)), async {
        token.wait_for(|count| count >= 6, "not all processes came up").await;
        within(sandbox.destroy()).await.unwrap();
        assert_eq!(token.processes(), Vec::<i32>::new(), "alive after destroy");
    });
    assert!(end.unwrap_err().to_string().contains("destroyed"));
    within(sandbox.destroy()).await.unwrap();
    assert!(sandbox.exec(ground.script("true")).await.is_err());
    assert!(!spec.host_dir.exists());
    // Nothing of it is in the way of one with the same name.
    let again = within(ground.provider.create(spec)).await.unwrap();
    assert_eq!(ground.sh(&*again, "ls -A ~").await, "");
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
    assert_eq!(ground.sh(&*again, "echo kept").await, "kept\n");
    within(again.destroy()).await.unwrap();
}

/// `kill` is given the process of a command, and kills what holds the sandbox around it.
#[allow(
    dead_code,
    reason = "not every provider's is one that can be killed apart from the command"
)]
pub(crate) async fn sandbox_killed_from_outside(ground: Ground, kill: impl Fn(i32)) {
    let sandbox = ground.sandbox("killed").await;
    let token = Token::new();
    let exec = ground.script(&format!("env sleep {}", token.0));
    let (end, ()) = tokio::join!(within(sandbox.exec(exec)), async {
        token.wait_for(|count| count == 1, "did not come up").await;
        kill(token.processes()[0]);
    });
    let problem = end.unwrap_err();
    assert!(problem.retryable && problem.message.contains("killed by somebody else"), "{problem}");
    // One that was killed by itself has an end of its own.
    let exec = ground.script("kill -KILL $$");
    assert_eq!(ground.run(&*sandbox, exec).await.end, ExecEnd::Exited(137));
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_8_folder_that_is_too_large_is_an_error(ground: Ground) {
    let sandbox = ground.sandbox("large").await;
    within(sandbox.mark_base()).await.unwrap();
    ground
        .sh(&*sandbox, "truncate -s 5G large || dd if=/dev/zero of=large bs=1 count=0 seek=5G")
        .await;
    let problem = within(sandbox.diff()).await.unwrap_err();
    assert!(problem.to_string().contains("too much"), "{problem}");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn diff_has_every_kind_of_change(ground: Ground) {
    let sandbox = ground.sandbox("diff").await;
    let long: String = (0..200).map(|line| format!("line {line}\n")).collect();
    within(sandbox.write_file("moved", long.as_bytes(), false)).await.unwrap();
    within(sandbox.write_file(".git/config", b"[user's own", false)).await.unwrap();
    within(sandbox.write_file(".gitignore", b"ignored\n", false)).await.unwrap();
    within(sandbox.write_file(".gitattributes", b"* -diff filter=lfs\n", false)).await.unwrap();
    ground
        .sh(
            &*sandbox,
            "echo a > changed; echo b > mode; echo c > gone; ln -s a link; echo d > 'né \"w'",
        )
        .await;
    let problem = within(sandbox.diff()).await.unwrap_err();
    assert!(problem.to_string().contains("never marked"), "{problem}");
    within(sandbox.mark_base()).await.unwrap();
    assert_eq!(within(sandbox.diff()).await.unwrap(), b"");
    ground
        .sh(
            &*sandbox,
            "echo A > changed; chmod +x mode; rm gone; mkdir sub nested nested/.git; \
             mv moved sub/moved; ln -sf b link; echo n > new; echo i > ignored; \
             printf '\\000\\001\\377' > binary; echo n > nested/file; echo x > nested/.git/x; \
             echo d2 > 'né \"w'; mkfifo pipe",
        )
        .await;
    let patch = within(sandbox.diff()).await.unwrap();
    let text = String::from_utf8_lossy(&patch);
    for part in [
        "--- a/changed\n+++ b/changed\n",
        "-a\n+A\n",
        "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n",
        "diff --git a/gone b/gone\ndeleted file mode 100644\n",
        "similarity index 100%\nrename from moved\nrename to sub/moved\n",
        "diff --git a/new b/new\nnew file mode 100644\n",
        "+++ b/ignored\n",
        "GIT binary patch\n",
        "+++ b/nested/file\n",
        "\"a/n\\303\\251 \\\"w\"",
    ] {
        assert!(text.contains(part), "{part:?} not in\n{text}");
    }
    assert!(text.contains("index ") && text.contains(" 120000\n"), "{text}");
    assert!(!text.contains(".git/") && !text.contains("pipe"), "{text}");
    // It is a patch: applied to the base, it gives what is there now.
    let other = tempfile::tempdir().unwrap();
    let base = other.path();
    std::fs::write(base.join("moved"), &long).unwrap();
    for (name, content) in [("changed", "a\n"), ("mode", "b\n"), ("gone", "c\n"), ("né \"w", "d\n")]
    {
        std::fs::write(base.join(name), content).unwrap();
    }
    std::os::unix::fs::symlink("a", base.join("link")).unwrap();
    std::fs::write(base.join("patch"), &patch).unwrap();
    let mut git = std::process::Command::new("git");
    let git = git.args(["apply", "patch"]).current_dir(base).output().unwrap();
    assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    assert_eq!(std::fs::read(base.join("binary")).unwrap(), [0, 1, 255]);
    assert_eq!(std::fs::read_link(base.join("link")).unwrap().to_str(), Some("b"));
    assert_eq!(std::fs::read_to_string(base.join("sub/moved")).unwrap(), long);
    all_changes_are_told_whole(&*sandbox, &long).await;
    // The user's repository is as it was.
    assert_eq!(ground.sh(&*sandbox, "ls -A .git; cat .git/config").await, "config\n[user's own");
    within(sandbox.destroy()).await.unwrap();
}

async fn all_changes_are_told_whole(sandbox: &dyn Sandbox, long: &str) {
    let file = |text: &str, executable| {
        Some(Content::File { bytes: text.as_bytes().to_vec(), executable })
    };
    let expected = [
        ("binary", false, Some(Content::File { bytes: vec![0, 1, 255], executable: false })),
        ("changed", true, file("A\n", false)),
        ("gone", true, None),
        ("ignored", false, file("i\n", false)),
        ("link", true, Some(Content::Link(b"b".to_vec()))),
        ("mode", true, file("b\n", true)),
        ("moved", true, None),
        ("nested/file", false, file("n\n", false)),
        ("new", false, file("n\n", false)),
        ("né \"w", true, file("d2\n", false)),
        ("sub/moved", false, file(long, false)),
    ];
    let mut changes = within(sandbox.changes(1 << 20)).await.unwrap();
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(path, existed, now)| Change { path: path.as_bytes().to_vec(), existed, now })
        .collect();
    assert_eq!(changes, expected);
    let problem = within(sandbox.changes(100)).await.unwrap_err();
    assert!(problem.to_string().contains("more than 100 bytes"), "{problem}");
    assert!(!problem.retryable);
}

pub(crate) async fn names_are_refused_when_they_cannot_be_kept_apart(ground: Ground) {
    for name in ["", "../up", "a/b", ".hidden", "with space"] {
        let mut spec = ground.spec("fine");
        spec.name = name.into();
        assert!(within(ground.provider.create(spec)).await.is_err(), "{name:?}");
    }
    let first = ground.sandbox("twice").await;
    let second = within(ground.provider.create(ground.spec("twice"))).await;
    assert!(second.err().unwrap().to_string().contains("in use"));
    within(first.destroy()).await.unwrap();
}

/// `other` is of the same name as the ground's node, with another state folder.
pub(crate) async fn sweep_spares_other_nodes(ground: Ground, other: Box<dyn SandboxProvider>) {
    let sandbox = ground.sandbox("spared").await;
    let token = Token::new();
    let exec = ground.script(&format!("exec env sleep {}", token.0));
    let sweep = async {
        token.wait_for(|count| count == 1, "did not come up").await;
        assert_eq!(within(other.sweep(&HashSet::new())).await.unwrap(), 0);
        assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
        assert_eq!(token.processes().len(), 1);
        within(sandbox.destroy()).await.unwrap();
    };
    let (end, ()) = tokio::join!(within(sandbox.exec(exec)), sweep);
    assert!(end.is_err());
}

/// Makes a sandbox with a command that hides, and removes both. As a child of
/// [`promise_7_sweep_after_a_kill`] it waits to be killed in between.
pub(crate) async fn made_and_removed(ground: Ground) {
    let stay = std::env::var(STAY).ok();
    let token = Token::new();
    let mut spec = ground.spec("left-behind");
    if let Some(folder) = &stay {
        spec.host_dir = folder.into();
    }
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let exec = ground.script(&hiding(&token, &format!("exec sleep {}", token.0)));
    let ready = async {
        token.wait_for(|count| count >= 6, "not all processes came up").await;
        if let Some(folder) = stay {
            std::fs::write(format!("{folder}.token"), &token.0).unwrap();
            std::future::pending::<()>().await;
        }
        within(sandbox.destroy()).await.unwrap();
    };
    let (_, ()) = tokio::join!(sandbox.exec(exec), ready);
    assert_eq!(token.processes(), Vec::<i32>::new());
}

/// `test` is the name of the caller's [`made_and_removed`].
pub(crate) async fn sweep_after_a_kill(ground: Ground, test: &str) {
    let folder = ground.dir.path().join("left");
    let mut maker = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(STAY, &folder)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let token_file = folder.with_extension("token");
    let token = within(async {
        loop {
            assert!(maker.try_wait().unwrap().is_none(), "the maker ended");
            match std::fs::read_to_string(&token_file) {
                Ok(token) if !token.is_empty() => return Token(token),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    // One that is still to become another program may have been counted twice.
    token.wait_for(|count| count >= 6, "ended before the death of the node").await;
    maker.kill().await.unwrap();
    if ground.traits.dies_with_node {
        token.wait_for(|count| count == 0, "alive after the death of the node").await;
    }
    let keep = HashSet::from(["left-behind".to_owned()]);
    assert_eq!(within(ground.provider.sweep(&keep)).await.unwrap(), 0);
    let kept = if ground.traits.dies_with_node {
        folder.join("sandbox").exists()
    } else {
        token.processes().len() >= 6
    };
    assert!(kept, "what is to be kept was swept");
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 1);
    assert_eq!(token.processes(), Vec::<i32>::new(), "alive after the sweep");
    assert!(!folder.join("sandbox").exists());
    assert_eq!(mounts_below(&folder), Vec::<String>::new());
    assert_eq!(within(ground.provider.sweep(&HashSet::new())).await.unwrap(), 0);
}
