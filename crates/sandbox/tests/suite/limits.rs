//! What every provider must hold to when a task asks for it, or refuse.

use super::ground::{Ground, Token, within};
use polar_sandbox::{ExecEnd, Mount, Sandbox, SandboxSpec};
use std::time::Duration;

/// A sandbox with a limit; none where the node can't hold to it, which must be said.
async fn limited(ground: &Ground, field: &str, spec: SandboxSpec) -> Option<Box<dyn Sandbox>> {
    let folder = spec.host_dir.clone();
    match within(ground.provider.create(spec)).await {
        Ok(sandbox) => Some(sandbox),
        Err(problem) => {
            assert!(!ground.traits.limits, "{problem}");
            let refusal = format!("`{field}` cannot be held to on this node");
            assert!(problem.message.contains(&refusal) && !problem.retryable, "{problem}");
            assert!(problem.message.contains("docker"), "no way out: {problem}");
            assert!(!folder.exists());
            None
        }
    }
}

pub(crate) async fn promise_8_memory_limit_kills_and_says_so(ground: Ground) {
    let spec = SandboxSpec { memory_mb: Some(64), ..ground.spec("memory") };
    let Some(sandbox) = limited(&ground, "memory_mb", spec).await else { return };
    // Needs it all in memory.
    let hoard = "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c";
    let outcome = ground.run(&*sandbox, ground.script(hoard)).await;
    assert_ne!(outcome.stdout.trim(), "190000000");
    assert!(outcome.stderr.contains("`memory_mb` of 64"), "{}", outcome.stderr);
    // The sandbox goes on, and what is not killed is not said to be.
    let outcome = ground.run(&*sandbox, ground.script("echo still here")).await;
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("still here\n", ""));
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_8_pids_limit_stops_a_fork_bomb(ground: Ground) {
    const MOST: u32 = 48;
    let spec = SandboxSpec { pids: Some(MOST), ..ground.spec("pids") };
    let Some(sandbox) = limited(&ground, "pids", spec).await else { return };
    let token = Token::new();
    let sleeps = format!("i=0; while [ $i -lt 100 ]; do env sleep {} & i=$((i+1)); done", token.0);
    // A shell that can't fork ends; one that does nothing any more but wait doesn't.
    let mut exec = ground.script(&format!("sh -c '{sleeps}'; while :; do :; done"));
    exec.timeout = Duration::from_secs(5);
    let most = std::sync::atomic::AtomicUsize::new(0);
    let count = async {
        loop {
            most.fetch_max(token.processes().len(), std::sync::atomic::Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let outcome = tokio::select! {
        outcome = ground.run(&*sandbox, exec) => outcome,
        () = count => return,
    };
    let most = most.into_inner();
    assert!((1..=MOST as usize).contains(&most), "{most}: {}", outcome.stderr);
    assert_eq!(token.processes(), Vec::<i32>::new(), "alive after the command's end");
    let mut bomb = ground.script("bomb() { bomb | bomb & }; bomb; sleep 60");
    bomb.timeout = Duration::from_secs(3);
    ground.run(&*sandbox, bomb).await;
    assert_eq!(ground.sh(&*sandbox, "echo still here").await, "still here\n");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_8_storage_limit_stops_filling_the_disk(ground: Ground) {
    let spec = SandboxSpec { storage_mb: Some(64), ..ground.spec("storage") };
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    // What fits may be written.
    ground.sh(&*sandbox, "head -c 30000000 /dev/zero > fits").await;
    // One file alone is stopped by the kernel.
    let outcome = ground.run(&*sandbox, ground.script("head -c 90000000 /dev/zero > long")).await;
    assert_ne!(outcome.end, ExecEnd::Exited(0));
    let length = ground.sh(&*sandbox, "wc -c < long; rm long").await;
    assert!(length.trim().parse::<u64>().unwrap() <= 64 << 20, "{length}");
    let fill = "i=0; while :; do head -c 4000000 /dev/zero > ~/file$i; i=$((i+1)); done";
    let outcome = ground.run(&*sandbox, ground.script(fill)).await;
    assert_eq!(outcome.end, ExecEnd::Exited(137), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("`storage_mb` of 64"), "{}", outcome.stderr);
    // It can be looked at and cleared up, and then goes on.
    ground.sh(&*sandbox, "ls ~; rm ~/file*; head -c 20000000 /dev/zero > again").await;
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_8_output_of_a_gigabyte_is_bounded(ground: Ground) {
    let sandbox = ground.sandbox("gigabyte").await;
    let mut exec = ground.script("head -c 1073741824 /dev/zero; echo end");
    // Container engines pass it on at some tens of megabytes a second on a busy machine.
    exec.timeout = Duration::from_secs(300);
    let (limit, stdout) = (exec.output_limit, exec.stdout.clone());
    let end = sandbox.exec(exec).await.unwrap();
    assert_eq!(end, ExecEnd::Exited(0));
    let kept = std::fs::read(&stdout).unwrap();
    assert!(kept.len() as u64 <= limit + 100, "{}", kept.len());
    assert!(kept.ends_with(b"\0end\n"));
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_9_only_allowed_folders_are_shown(ground: Ground) {
    let place = |name: &str| ground.dir.path().join(name);
    for (name, content) in [("readable", "data"), ("writable", "old"), ("secret", "secret")] {
        std::fs::create_dir(place(name)).unwrap();
        std::fs::write(place(name).join("file"), content).unwrap();
    }
    std::os::unix::fs::symlink(place("secret"), place("readable/link")).unwrap();
    let mount = |name: &str, target: &str, read_only| Mount {
        source: place(name),
        target: target.into(),
        read_only,
    };
    let mounts = vec![mount("readable", "/data", true), mount("writable", "/scratch", false)];
    let spec = SandboxSpec { mounts, ..ground.spec("mounts") };
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    for _ in 0..2 {
        let said = ground.sh(&*sandbox, "cat /data/file; echo new > /scratch/file").await;
        assert_eq!(said, "data");
    }
    let change = ground.run(&*sandbox, ground.script("echo changed > /data/file")).await;
    assert_ne!(change.end, ExecEnd::Exited(0));
    let link = ground.run(&*sandbox, ground.script("cat /data/link/file")).await;
    assert_eq!(link.stdout, "");
    within(sandbox.destroy()).await.unwrap();
    assert_eq!(std::fs::read_to_string(place("writable/file")).unwrap(), "new\n");
    for (asked, field) in [
        (mount("secret", "/data", true), "mounts[0].source"),
        (mount("readable/link", "/data", true), "mounts[0].source"),
        (mount("readable/../secret", "/data", true), "mounts[0].source"),
        (mount("readable", "/data", false), "mounts[0].read_only"),
        (mount("readable", "/proc/data", true), "mounts[0].target"),
    ] {
        let spec = SandboxSpec { mounts: vec![asked], ..ground.spec("refused") };
        let problem = within(ground.provider.create(spec)).await.err().unwrap();
        assert!(problem.message.contains(field) && !problem.retryable, "{problem}");
    }
}

/// Uploads go where a command inside could write, and nowhere else.
pub(crate) async fn promise_9_uploads_stay_inside(ground: Ground) {
    let sandbox = ground.sandbox("uploads").await;
    let outside = ground.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let target = outside.join("file");
    let upwards = format!("{}{}", "../".repeat(20), target.display());
    ground.sh(&*sandbox, &format!("ln -s {} link; ln -s / root", outside.display())).await;
    for path in [target.to_str().unwrap(), &upwards, "link/file", &format!("root{upwards}")] {
        // Some of these make the path inside, others fail; none may reach the node.
        let _ = within(sandbox.write_file(path, b"escaped", false)).await;
        assert!(!target.exists(), "{path} reached the node");
    }
    for path in ["/proc/version", "/proc/1/mem", "a\0b"] {
        let written = within(sandbox.write_file(path, b"escaped", false)).await;
        assert!(written.is_err(), "{path} was written");
    }
    assert_eq!(ground.sh(&*sandbox, "echo still here").await, "still here\n");
    within(sandbox.destroy()).await.unwrap();
}
