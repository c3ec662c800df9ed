//! What a sandbox may reach, and what of the node and of others stays out of it.

use super::ground::{Ground, Token, within};
use polar_sandbox::{ExecEnd, SandboxSpec};
use polar_types::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) async fn open_network_reaches_gateway_and_more(ground: Ground) {
    let mut spec = ground.spec("open");
    spec.network = Network::Open;
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let (host, port) = sandbox.gateway_url()[7..].rsplit_once(':').unwrap();
    for _ in 0..2 {
        let answer = ground.connect(&*sandbox, host, port.parse().unwrap()).await.unwrap();
        assert!(answer.ends_with("this is gateway\n"), "{answer}");
        // Also after the container was restarted for what this leaves.
        ground.sh(&*sandbox, "sleep 1000 >/dev/null 2>&1 &").await;
    }
    let devices = ground.sh(&*sandbox, "cat /proc/net/dev; cat /etc/resolv.conf").await;
    assert!(has_network(&devices), "{devices}");
    assert!(devices.contains("nameserver"), "{devices}");
    // What is fetched beforehand may be fetched; then nothing more is reached.
    if ground.traits.closes_network {
        within(sandbox.close_network()).await.unwrap();
        let devices = ground.sh(&*sandbox, "cat /proc/net/dev").await;
        assert!(!has_network(&devices), "{devices}");
    } else {
        let problem = within(sandbox.close_network()).await.unwrap_err();
        assert!(problem.message.contains("`network`") && !problem.retryable, "{problem}");
    }
    within(sandbox.destroy()).await.unwrap();
}

/// Whether there is a device that leads out.
fn has_network(devices: &str) -> bool {
    let leads_out = |line: &str| ["eth", "en", "tap"].iter().any(|name| line.starts_with(name));
    devices.lines().any(|line| leads_out(line.trim()))
}

pub(crate) async fn promise_9_closed_network_reaches_only_the_gateway(ground: Ground) {
    use std::os::linux::net::SocketAddrExt;
    let sandbox = ground.sandbox("closed").await;
    let port: u16 = sandbox.gateway_url().rsplit_once(':').unwrap().1.parse().unwrap();
    assert_eq!(sandbox.gateway_url(), format!("http://127.0.0.1:{port}"));
    for _ in 0..3 {
        let answer = ground.connect(&*sandbox, "127.0.0.1", port).await.unwrap();
        assert!(answer.ends_with("this is gateway\n"), "{answer}");
    }
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let other = listener.local_addr().unwrap().port();
    let mut places = vec!["127.0.0.1".to_owned(), "172.17.0.1".into(), "10.0.0.1".into()];
    // The host's own address on its network; nothing is sent.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_ok() {
        places.push(probe.local_addr().unwrap().ip().to_string());
    }
    for place in places {
        for port in [other, ground.gateway.port(), 53] {
            let answer = ground.connect(&*sandbox, &place, port).await;
            assert_eq!(answer, None, "{place}:{port} answered");
        }
    }
    // Where clouds tell a machine its keys, and names and addresses of the internet.
    for place in ["169.254.169.254", "fd00:ec2::254", "1.1.1.1", "deb.debian.org"] {
        assert!(ground.connect(&*sandbox, place, 80).await.is_none(), "{place} answered");
    }
    let name = format!("polar-abstract-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let devices = "sed -n 's/^ *\\([a-z0-9]*\\):.*/\\1/p' /proc/net/dev; cat /proc/net/unix";
    let seen = ground.sh(&*sandbox, devices).await;
    assert!(seen.starts_with("lo\n") && !seen.contains(&name), "{seen}");
    let sockets = "ls /var/run/docker.sock /run/docker.sock /run/containerd 2>/dev/null; true";
    assert_eq!(ground.sh(&*sandbox, sockets).await, "");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_9_allowed_hosts_are_reached_and_no_others(ground: Ground) {
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = elsewhere.accept().await {
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap_or_default();
            let body = [b"elsewhere got ", &request[..length]].concat();
            let head = format!("HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    let host = format!("127.0.0.1:{port}");
    let allowed_hosts = vec![host.parse().unwrap(), "*.example.org".parse().unwrap()];
    let spec = SandboxSpec { allowed_hosts, ..ground.spec("allowed") };
    let sandbox = within(ground.provider.create(spec)).await.unwrap();
    let proxy = sandbox.gateway_url().to_owned();
    let seen = ground.sh(&*sandbox, "echo $HTTP_PROXY $https_proxy $NO_PROXY").await;
    let own = proxy.rsplit(':').next().unwrap().parse().unwrap();
    // Programs would otherwise look for the node's loopback in the sandbox's.
    assert_eq!(seen.trim(), format!("{proxy} {proxy} 127.0.0.1:{own}"));
    let ask = async |request: &str| {
        ground.ask(&*sandbox, "127.0.0.1", own, request).await.expect("the proxy answers")
    };
    let url = format!("GET http://{host}/file HTTP/1.0\r\nHost: other\r\n\r\n");
    let answer = ask(&url).await;
    let forwarded = format!("elsewhere got GET /file HTTP/1.0\r\nHost: {host}\r\n");
    assert!(answer.contains(&forwarded), "{answer}");
    let tunnel = format!("CONNECT {host} HTTP/1.1\r\n\r\nGET /inside HTTP/1.0\r\n\r\n");
    let answer = ask(&tunnel).await;
    assert!(answer.contains("elsewhere got GET /inside"), "{answer}");
    // The gateway is what it was, also for a program that asks the proxy for it.
    for request in ["GET / HTTP/1.0\r\n\r\n", &format!("GET {proxy}/ HTTP/1.0\r\n\r\n")] {
        let answer = ask(request).await;
        assert!(answer.contains("this is gateway"), "{answer}");
    }
    let refused = [
        format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", ground.gateway.port()),
        format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n"),
        "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n".to_owned(),
        "GET http://example.org/ HTTP/1.0\r\n\r\n".to_owned(),
        format!("GET http://www.example.org:{port}/ HTTP/1.0\r\n\r\n"),
    ];
    for request in refused {
        let answer = ask(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{request}: {answer}");
        assert!(answer.contains("`runtime.allowed_hosts`"), "{request}: {answer}");
    }
    let seen = sandbox.network_use();
    let told: Vec<_> = seen.hosts.iter().map(ToString::to_string).collect();
    let gateway = format!("127.0.0.1:{} (1 refused)", ground.gateway.port());
    let expected = [
        format!("{host} (2 let through)"),
        gateway,
        format!("localhost:{port} (1 refused)"),
        "169.254.169.254:80 (1 refused)".to_owned(),
        "example.org:80 (1 refused)".to_owned(),
        format!("www.example.org:{port} (1 refused)"),
    ];
    assert_eq!((told, seen.others), (expected.to_vec(), 0));
    let past_the_proxy = ground.connect(&*sandbox, "127.0.0.1", port).await;
    assert_eq!(past_the_proxy, None, "reached without the proxy");
    within(sandbox.close_network()).await.unwrap();
    let answer = ask(&tunnel).await;
    assert!(answer.contains("no network any more"), "{answer}");
    assert_eq!(sandbox.network_use().hosts[0].refused, 1, "counted on when it is closed");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_9_sandboxes_do_not_see_each_other_nor_the_host(ground: Ground) {
    let spec = ground.spec("seen");
    let seen = within(ground.provider.create(spec.clone())).await.unwrap();
    let eyes = ground.sandbox("eyes").await;
    within(seen.write_file("secret", b"secret", false)).await.unwrap();
    ground.sh(&*seen, "echo secret > /tmp/secret; echo secret > ~/secret").await;
    let token = Token::new();
    let exec = ground.script(&format!("sleep {}", token.0));
    let look = async {
        token.wait_for(|count| count >= 1, "did not come up").await;
        let hidden = spec.host_dir.display().to_string();
        let script = format!(
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -d {hidden} {} ; ls -A . ~ /tmp",
            ground.dir.path().display()
        );
        let outcome = ground.run(&*eyes, ground.script(&script)).await;
        // Its own script names the folders; what must not be there is the sleep.
        assert!(!outcome.stdout.contains(&format!("sleep {}", token.0)), "{}", outcome.stdout);
        let listing = outcome.stdout.rsplit("/tmp:").next().unwrap();
        assert!(!outcome.stdout.contains("secret"), "{listing}");
        assert_eq!(outcome.stderr.matches("No such file").count(), 2, "{}", outcome.stderr);
        within(seen.destroy()).await.unwrap();
    };
    let (_, ()) = tokio::join!(seen.exec(exec), look);
    within(eyes.destroy()).await.unwrap();
}

/// Such as the control token that the user's servers keep: with an open network it would
/// open their control API.
pub(crate) async fn promise_9_own_files_of_the_user_stay_out(ground: Ground) {
    // Not below /tmp, which a sandbox has of its own.
    let folder = std::env::var("POLAR_TEST_FOLDER");
    let folder = folder.unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let folder = tempfile::tempdir_in(folder).unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "the user's own").unwrap();
    for (name, network) in [("closed", Network::None), ("open", Network::Open)] {
        let spec = SandboxSpec { network, ..ground.spec(name) };
        let sandbox = within(ground.provider.create(spec)).await.unwrap();
        let script = format!("cat {}", file.display());
        let outcome = ground.run(&*sandbox, ground.script(&script)).await;
        assert_ne!(outcome.end, ExecEnd::Exited(0), "{}", outcome.stdout);
        assert_eq!(outcome.stdout, "");
        within(sandbox.destroy()).await.unwrap();
    }
}

pub(crate) async fn promise_9_files_open_in_the_node_stay_out(ground: Ground) {
    let sandbox = ground.sandbox("open-files").await;
    let path = ground.dir.path().join("open-in-the-node");
    let file = std::fs::File::create(&path).unwrap();
    // As if the node had inherited it itself.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let open = ground.sh(&*sandbox, "ls -l /proc/self/fd").await;
    assert!(!open.contains("open-in-the-node"), "{open}");
    within(sandbox.destroy()).await.unwrap();
}

pub(crate) async fn promise_9_no_privileges_inside(ground: Ground) {
    let sandbox = ground.sandbox("powers").await;
    let status = ground.sh(&*sandbox, "cat /proc/self/status").await;
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!(value("NoNewPrivs"), "1");
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&value(set), 16).unwrap(), 0, "{set}");
    }
    // Kernel settings, which root could write without any capability. Written back as
    // they are, should it work.
    for setting in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness"] {
        let script = format!("v=$(cat {setting}); echo \"$v\" > {setting}");
        let outcome = ground.run(&*sandbox, ground.script(&script)).await;
        assert_ne!(outcome.end, ExecEnd::Exited(0), "{setting} can be written");
    }
    within(sandbox.destroy()).await.unwrap();
}
