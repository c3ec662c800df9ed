//! The hosts that a closed sandbox may reach all the same, by an HTTP proxy.
//!
//! The proxy stands where the gateway does, at the one address that a closed sandbox has, and
//! is told apart by its requests: `CONNECT`, or a whole URL. Names are looked up here, on the
//! node, so that none of a sandbox's own leads anywhere. One connection reaches one host; it
//! must not look at what passes behind the head of its first request.

use http::Uri;
use http::uri::Authority;
use polar_types::{AllowedHost, HostAnswer, NetworkUse};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long finding a host and connecting to it may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the head of a request may take to come.
const HEAD: Duration = Duration::from_secs(30);
/// Longest head of a request.
const MOST_HEAD: usize = 64 << 10;
/// Names that are looked up at a time, of all sandboxes.
const MOST_LOOK_UPS: usize = 32;
/// Ports of HTTP and HTTPS.
const HTTP: u16 = 80;
const HTTPS: u16 = 443;
/// Where clouds tell their machines' secrets, beside the link-local address of most of them.
const METADATA: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// Hosts that may be reached until it is closed.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    hosts: Vec<AllowedHost>,
    closed: AtomicBool,
    seen: Mutex<NetworkUse>,
}

/// Where the first bytes of a connection want to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    Gateway,
    Elsewhere,
}

impl Egress {
    pub(crate) fn to(hosts: Vec<AllowedHost>) -> Self {
        Self { hosts, ..Self::default() }
    }

    /// What was asked for.
    pub(crate) fn seen(&self) -> NetworkUse {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, request: &Request, answer: HostAnswer) {
        let host = format!("{}:{}", request.host.to_ascii_lowercase(), request.port);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).note(&host, answer);
    }

    /// Lets nothing more out.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Variables by which programs find the proxy at a port of their loopback. Its own requests
    /// to the gateway need none.
    pub(crate) fn variables(&self, port: u16) -> Vec<(String, String)> {
        if self.is_empty() {
            return Vec::new();
        }
        let proxy = format!("http://127.0.0.1:{port}");
        let names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
        let mut all: Vec<_> = names.map(|name| (name.to_owned(), proxy.clone())).into();
        // The sandbox's own loopback needs none, unless the node's is meant by it.
        let past = match self.hosts.iter().any(AllowedHost::is_loopback) {
            true => format!("127.0.0.1:{port}"),
            false => "127.0.0.1,localhost,::1".to_owned(),
        };
        for name in ["NO_PROXY", "no_proxy"] {
            all.push((name.to_owned(), past.clone()));
        }
        // Node's own client looks for the others only then.
        all.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
        all
    }

    /// Serves a connection of which `head` was read. Gives it back when it is for the gateway
    /// after all, with what is to be said there.
    pub(crate) async fn serve(
        &self,
        mut client: TcpStream,
        head: Vec<u8>,
        gateway_port: u16,
    ) -> io::Result<Option<(TcpStream, Vec<u8>)>> {
        let read = timeout(HEAD, whole_head(&mut client, head)).await;
        let Ok(Some(head)) = read.map_err(io::Error::from)? else { return Ok(None) };
        let request = match Request::of(&head) {
            Some(request) => request,
            None => return refuse(client, "400 Bad Request", "polar: no request to a proxy").await,
        };
        if request.port == gateway_port && is_loopback(&request.host) {
            if request.forwarded.is_none() {
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
            }
            return Ok(Some((client, request.into_first_bytes())));
        }
        let reached = timeout(CONNECT, self.reach(&request.host, request.port)).await;
        let (answer, status, why) = match reached {
            Ok(Ok(host)) => {
                self.note(&request, HostAnswer::Reached);
                return tunnel(client, host, request).await;
            }
            Ok(Err(Unreached::Refused(why))) => (HostAnswer::Refused, "403 Forbidden", why),
            Ok(Err(Unreached::Failed(why))) => (HostAnswer::Failed, "502 Bad Gateway", why),
            Err(_) => {
                let why = format!("polar: {} does not answer in {CONNECT:?}", request.host);
                (HostAnswer::Failed, "504 Gateway Timeout", why)
            }
        };
        self.note(&request, answer);
        refuse(client, status, &why).await
    }

    async fn reach(&self, host: &str, port: u16) -> Result<TcpStream, Unreached> {
        let refused = |why: String| Err(Unreached::Refused(format!("polar: {why}\n")));
        if self.closed.load(Ordering::Acquire) {
            return refused("this sandbox has no network any more".to_owned());
        }
        let Some(rule) = self.hosts.iter().find(|rule| rule.covers(host, port)) else {
            let allowed: Vec<_> = self.hosts.iter().map(AllowedHost::to_string).collect();
            return refused(format!(
                "this sandbox may not reach {host}:{port}; the task's `runtime.allowed_hosts` are {}",
                allowed.join(", ")
            ));
        };
        let failed = |problem: io::Error| {
            Unreached::Failed(format!("polar: {host}:{port} was not reached: {problem}\n"))
        };
        let found = look_up(host.to_owned(), port).await.map_err(failed)?;
        let (open, kept): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| may_lead_to(*address, rule.is_address()));
        if let ([], [kept, ..]) = (open.as_slice(), kept.as_slice()) {
            let ip = kept.ip();
            return refused(format!("{host} leads to {ip}, where no name may lead a sandbox"));
        }
        TcpStream::connect(open.as_slice()).await.map_err(failed)
    }
}

/// Carries what is said both ways, until both are done.
async fn tunnel(
    mut client: TcpStream,
    mut host: TcpStream,
    request: Request,
) -> io::Result<Option<(TcpStream, Vec<u8>)>> {
    if request.forwarded.is_none() {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    }
    host.write_all(&request.into_first_bytes()).await?;
    tokio::io::copy_bidirectional(&mut client, &mut host).await?;
    Ok(None)
}

/// Addresses of a host. A name that is not answered keeps its thread beyond any deadline, so that
/// no more than a few may be on their way.
async fn look_up(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    static LOOK_UPS: Semaphore = Semaphore::const_new(MOST_LOOK_UPS);
    let place = LOOK_UPS.acquire().await.map_err(io::Error::other)?;
    let look = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(place);
        found
    };
    tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?
}

enum Unreached {
    Refused(String),
    Failed(String),
}

/// Where a connection that begins so wants to get; nothing while that is open.
pub(crate) fn aim(head: &[u8]) -> Option<Aim> {
    const URL: &[u8] = b"http://";
    const LONGEST_METHOD: usize = 20;
    let Some(end) = head.iter().position(|byte| *byte == b' ') else {
        return (head.len() > LONGEST_METHOD).then_some(Aim::Gateway);
    };
    let target = &head[end + 1..];
    if &head[..end] == b"CONNECT" {
        return Some(Aim::Elsewhere);
    }
    let common = target.len().min(URL.len());
    if !target[..common].eq_ignore_ascii_case(&URL[..common]) {
        return Some(Aim::Gateway);
    }
    (common == URL.len()).then_some(Aim::Elsewhere)
}

/// The head of a request and what has come behind it; nothing when there is none.
async fn whole_head(
    client: &mut (impl AsyncRead + Unpin),
    mut head: Vec<u8>,
) -> io::Result<Option<Vec<u8>>> {
    let mut seen = 0;
    while end_of_head(unseen(&head, seen)).is_none() {
        seen = head.len();
        if head.len() > MOST_HEAD || client.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

const END: &[u8] = b"\r\n\r\n";

/// Where the end may lie of a head of which so many bytes were looked through before: each is
/// looked at a few times, in however many pieces it comes.
fn unseen(head: &[u8], seen: usize) -> &[u8] {
    &head[seen.saturating_sub(END.len() - 1)..]
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(END.len()).position(|window| window == END).map(|at| at + END.len())
}

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    host: String,
    port: u16,
    /// The head as the host is to see it; nothing when a connection is asked for.
    forwarded: Option<String>,
    /// What has come behind the head.
    rest: Vec<u8>,
}

impl Request {
    fn of(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at(end_of_head(bytes)?);
        let head = std::str::from_utf8(head).ok()?;
        let (line, fields) = head.split_once("\r\n")?;
        let mut words = line.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let rest = rest.to_vec();
        if method == "CONNECT" {
            let authority: Authority = target.parse().ok()?;
            let (host, port) = (bare(authority.host()), authority.port_u16().unwrap_or(HTTPS));
            return Some(Self { host, port, forwarded: None, rest });
        }
        let uri: Uri = target.parse().ok()?;
        let authority = uri.authority()?;
        // Names before an `@` are for nobody but the host itself, and its clients send none.
        let named = authority.as_str().rsplit('@').next()?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // One request for a connection, so that no other host is asked by the same one.
        let mut forwarded =
            format!("{method} {path} {version}\r\nHost: {named}\r\nConnection: close\r\n");
        for field in fields.trim_end().split("\r\n").filter(|field| !is_of_the_hop(field)) {
            forwarded.push_str(field);
            forwarded.push_str("\r\n");
        }
        forwarded.push_str("\r\n");
        let (host, port) = (bare(authority.host()), authority.port_u16().unwrap_or(HTTP));
        Some(Self { host, port, forwarded: Some(forwarded), rest })
    }

    fn into_first_bytes(self) -> Vec<u8> {
        let mut bytes = self.forwarded.unwrap_or_default().into_bytes();
        bytes.extend(self.rest);
        bytes
    }
}

fn is_of_the_hop(field: &str) -> bool {
    let name = field.split(':').next().unwrap_or_default().trim();
    let own = ["host", "connection", "keep-alive", "proxy-connection", "proxy-authorization"];
    name.is_empty() || own.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// An IPv6 address without the brackets that URLs put around it.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether an address may be reached. The machine itself only where the task says the very
/// address: a name may be made to lead there by whoever owns it.
fn may_lead_to(address: SocketAddr, is_said: bool) -> bool {
    let ip = address.ip().to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_nobodys = ip.is_unspecified() || ip.is_multicast() || is_link_local;
    !is_nobodys && !METADATA.contains(&ip) && (is_said || !is_own(ip))
}

/// Whether an address is one of this machine's: no others can be bound to.
fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

async fn refuse(
    mut client: TcpStream,
    status: &str,
    why: &str,
) -> io::Result<Option<(TcpStream, Vec<u8>)>> {
    tracing::debug!(status, why, "a sandbox's request to another host was refused");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{why}",
        why.len()
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await?;
    // What is still on its way would otherwise reset the connection before the answer is read.
    let mut rest = [0; 4096];
    let _ = timeout(CONNECT, async {
        while client.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_told_apart_by_its_first_bytes_however_they_come() {
        for (head, expected) in [
            (&b"CONNECT pypi.org:443 HTTP/1.1\r\n"[..], Aim::Elsewhere),
            (b"GET http://pypi.org/ HTTP/1.1\r\n", Aim::Elsewhere),
            (b"POST HTTP://pypi.org/ HTTP/1.1\r\n", Aim::Elsewhere),
            (b"POST /v1/messages HTTP/1.1\r\n", Aim::Gateway),
            (b"OPTIONS * HTTP/1.1\r\n", Aim::Gateway),
            (b"\x16\x03\x01 and more of no HTTP at all", Aim::Gateway),
            (b"WHATEVERTHISISITISNOMETHOD", Aim::Gateway),
        ] {
            let decided: Vec<_> = (0..=head.len()).filter_map(|end| aim(&head[..end])).collect();
            assert!(decided.iter().all(|aim| *aim == expected), "{head:?}: {decided:?}");
            assert!(!decided.is_empty(), "{head:?}");
        }
    }

    #[tokio::test]
    async fn a_head_that_comes_in_pieces_is_found_wherever_they_end() {
        let asked: &'static [u8] = b"CONNECT a:1 HTTP/1.1\r\nA: \r\r\n\r\n";
        for cut in 0..asked.len() {
            let (first, rest) = asked.split_at(cut);
            let (mut near, mut far) = tokio::io::duplex(1);
            tokio::spawn(async move { far.write_all(rest).await });
            let head = whole_head(&mut near, first.to_vec()).await.unwrap();
            assert_eq!(head.as_deref(), Some(asked), "cut at {cut}");
        }
        // What is looked at again does not grow with what was looked at before.
        for seen in [0, 3, 4, MOST_HEAD] {
            let head = vec![b'x'; seen + 1];
            assert!(unseen(&head, seen).len() <= END.len());
        }
    }

    #[test]
    fn a_request_goes_on_without_what_was_for_the_proxy() {
        let asked = b"POST http://pypi.org:8080/a?b=1 HTTP/1.1\r\nHost: evil.example\r\n\
            Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\
            Content-Length: 2\r\n\r\nok";
        let request = Request::of(asked).unwrap();
        assert_eq!((request.host.as_str(), request.port), ("pypi.org", 8080));
        assert_eq!(
            String::from_utf8(request.into_first_bytes()).unwrap(),
            "POST /a?b=1 HTTP/1.1\r\nHost: pypi.org:8080\r\nConnection: close\r\nAccept: */*\r\n\
             Content-Length: 2\r\n\r\nok"
        );
        let tunnel = Request::of(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\nmore").unwrap();
        assert_eq!((tunnel.host.as_str(), tunnel.port), ("2001:db8::1", 443));
        assert_eq!(tunnel.into_first_bytes(), b"more");
        for none in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"CONNECT /a HTTP/1.1\r\n\r\n",
            b"GET http:// x\r\n\r\n",
        ] {
            assert_eq!(Request::of(none), None);
        }
    }

    #[test]
    fn names_lead_neither_to_the_machine_itself_nor_to_its_clouds_secrets() {
        let may = |ip: &str, said| may_lead_to(SocketAddr::new(ip.parse().unwrap(), 80), said);
        for ip in [
            "169.254.169.254",
            "0.0.0.0",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "224.0.0.1",
            "255.255.255.255",
            "::ffff:169.254.169.254",
            "100.100.100.200",
        ] {
            assert!(!may(ip, false) && !may(ip, true), "{ip}");
        }
        for ip in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!may(ip, false) && may(ip, true), "{ip}");
        }
        // Others of its own addresses, where it has any.
        let route = UdpSocket::bind("0.0.0.0:0").unwrap();
        if route.connect("192.0.2.1:9").is_ok() {
            let own = route.local_addr().unwrap().ip().to_string();
            assert!(!may(&own, false) && may(&own, true), "{own}");
        }
        for ip in ["93.184.216.34", "10.0.0.5", "2606:2800:220:1::1"] {
            assert!(may(ip, false), "{ip}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_the_machine_itself_is_refused() {
        let egress = Egress::to(vec!["localhost:9".parse().unwrap()]);
        let Err(Unreached::Refused(why)) = egress.reach("localhost", 9).await else { panic!() };
        assert!(why.contains("where no name may lead a sandbox"), "{why}");
        let Err(Unreached::Refused(why)) = egress.reach("localhost", 10).await else { panic!() };
        assert!(why.contains("may not reach localhost:10") && why.contains("localhost:9"), "{why}");
        egress.close();
        let Err(Unreached::Refused(why)) = egress.reach("localhost", 9).await else { panic!() };
        assert!(why.contains("no network any more"), "{why}");
    }
}
