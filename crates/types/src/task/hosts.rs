//! Hosts that a sandbox with a closed network may reach all the same.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Ports of a host of which none is named: those of HTTP and HTTPS.
const WEB: [u16; 2] = [80, 443];

/// A host that may be reached: `pypi.org`, `*.debian.org` (hosts below it), `10.0.0.5:8080`,
/// `[2001:db8::1]:443`. Without a port it is 80 and 443.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    host: Pattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Address(IpAddr),
    Name(String),
    Below(String),
}

impl AllowedHost {
    /// Whether it covers a host, named by itself or as an address without brackets, and a port.
    pub fn covers(&self, host: &str, port: u16) -> bool {
        let port_fits = self.port.map_or(WEB.contains(&port), |own| own == port);
        port_fits && self.host.covers(&host.to_ascii_lowercase())
    }

    /// Whether it is an address rather than a name, so that nobody else says where it leads.
    pub fn is_address(&self) -> bool {
        matches!(self.host, Pattern::Address(_))
    }

    /// Whether it is an address of the machine's own loopback.
    pub fn is_loopback(&self) -> bool {
        matches!(self.host, Pattern::Address(address) if address.is_loopback())
    }

    /// Whether it is the name that leads to the machine itself.
    pub fn is_localhost(&self) -> bool {
        matches!(&self.host, Pattern::Name(name) if name == "localhost")
    }
}

impl Pattern {
    fn covers(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        match self {
            Self::Address(address) => host.parse::<IpAddr>().is_ok_and(|own| own == *address),
            Self::Name(name) => host == name,
            Self::Below(parent) => host
                .strip_suffix(parent)
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|below| !below.is_empty()),
        }
    }
}

/// Why a text names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host such as `pypi.org`, `*.debian.org` or `10.0.0.5:8080`")]
pub struct NoHost(String);

impl FromStr for AllowedHost {
    type Err = NoHost;

    fn from_str(text: &str) -> Result<Self, NoHost> {
        let none = || NoHost(text.to_owned());
        let (host, port) = split(text).ok_or_else(none)?;
        let host = host.to_ascii_lowercase();
        let (is_below, name) = match host.strip_prefix("*.") {
            Some(parent) => (true, parent),
            None => (false, host.as_str()),
        };
        let host = match (name.parse(), is_below) {
            (Ok(address), false) => Pattern::Address(address),
            (Err(_), _) if !is_name(name) => return Err(none()),
            (Err(_), true) => Pattern::Below(name.to_owned()),
            (Err(_), false) => Pattern::Name(name.to_owned()),
            (Ok(_), true) => return Err(none()),
        };
        Ok(Self { host, port })
    }
}

/// Host and port of `host`, `host:port`, an IPv6 address, or one in brackets.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        return match port.strip_prefix(':') {
            Some(port) => Some((address, Some(port.parse().ok()?))),
            None if port.is_empty() => Some((address, None)),
            None => None,
        };
    }
    match text.split_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok().filter(|port| *port > 0)?))),
        None => Some((text, None)),
    }
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_number =
        text.rsplit('.').next().is_some_and(|end| end.bytes().all(|b| b.is_ascii_digit()));
    text.len() <= 253 && text.split('.').all(is_label) && !is_number
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Pattern::Address(IpAddr::V6(address)) if self.port.is_some() => {
                write!(f, "[{address}]")?
            }
            Pattern::Address(address) => write!(f, "{address}")?,
            Pattern::Name(name) => f.write_str(name)?,
            Pattern::Below(parent) => write!(f, "*.{parent}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> AllowedHost {
        text.parse().unwrap()
    }

    #[test]
    fn a_host_covers_itself_and_the_ports_of_the_web() {
        assert!(host("pypi.org").covers("PyPI.org", 443));
        assert!(host("pypi.org").covers("pypi.org.", 80));
        assert!(!host("pypi.org").covers("pypi.org", 22));
        assert!(host("pypi.org:22").covers("pypi.org", 22));
        assert!(!host("pypi.org:22").covers("pypi.org", 443));
        assert!(!host("pypi.org").covers("files.pypi.org", 443));
        assert!(!host("pypi.org").covers("notpypi.org", 443));
    }

    #[test]
    fn a_star_covers_what_lies_below_alone() {
        let below = host("*.debian.org");
        assert!(below.covers("deb.debian.org", 80) && below.covers("a.b.debian.org", 80));
        assert!(!below.covers("debian.org", 80) && !below.covers("notdebian.org", 80));
        assert!(!below.covers(".debian.org", 80));
    }

    #[test]
    fn addresses_are_compared_as_addresses() {
        assert!(host("10.0.0.5:8080").covers("10.0.0.5", 8080));
        assert!(host("[2001:db8::1]:443").covers("2001:DB8:0::1", 443));
        assert!(host("2001:db8::1").covers("2001:db8::1", 80));
        assert!(host("10.0.0.5").is_address() && !host("a5").is_address());
    }

    #[test]
    fn what_names_no_host_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a..b",
            "https://pypi.org",
            "pypi.org/simple",
            "pypi.org:",
            "a:0",
            "a:70000",
            "*.10.0.0.1",
            "10.0.0",
            "[::1",
            "[::1]x",
            "a b",
            "*.*.org",
            "a.*.org",
            "user@host",
        ] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_host_is_shown_as_it_is_written() {
        for text in ["pypi.org", "*.debian.org:80", "10.0.0.5:8080", "[::1]:443", "::1"] {
            assert_eq!(host(text).to_string(), text);
        }
    }
}
