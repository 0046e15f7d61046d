//! The HTTP server of `--metrics`: Prometheus text, health, JSON and a status page, in a thread of its own.
//!
//! The program's main thread starts and ends it. It reads the relay and changes nothing. Connections are bounded in number, time
//! and size: each brings one request, and one too many takes the place of the oldest.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    rc::Rc,
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, Version,
    body::{Bytes, Incoming},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS,
    },
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    sync::oneshot,
    task::{AbortHandle, LocalSet, spawn_local},
    time::{sleep, timeout},
};

use super::protocol::Health;
use crate::{
    error::{Error, Result},
    metrics,
    relay::Reader,
    snapshot::Snapshot,
};

/// The port, where an address is given without one.
pub const DEFAULT_PORT: u16 = 9922;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 128;
/// How long a connection is left alone before another may take its place.
const GRACE: Duration = Duration::from_millis(100);
/// How long a request and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 16 << 10;

const PAGE: &str = include_str!("page.html");

/// A running server.
#[derive(Debug)]
pub struct Http {
    relay: Arc<OnceLock<Running>>,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// A relay that runs.
#[derive(Debug)]
struct Running {
    relay: Reader,
    /// When it was started, in seconds since the Unix epoch.
    start_s: f64,
}

/// What every request is answered from.
struct Site {
    /// As soon as it runs.
    relay: Arc<OnceLock<Running>>,
    page: Bytes,
    /// It is there for this machine alone.
    local: bool,
}

/// A connection that is served.
struct Served {
    task: AbortHandle,
    since: Instant,
}

type Answer = Response<Full<Bytes>>;

/// Reads `PORT`, `ADDRESS`, `ADDRESS:PORT` or nothing; what is not said is [`DEFAULT_PORT`] on 127.0.0.1.
///
/// # Errors
/// It is none of these.
pub fn parse_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if text.is_empty() {
        return Ok((local, DEFAULT_PORT).into());
    }
    // Looking names up is left out: it takes long when it fails, and may find an address that is not local.
    let plain = match text.strip_prefix("localhost") {
        Some(rest) if rest.is_empty() || rest.starts_with(':') => format!("{local}{rest}"),
        _ => text.to_owned(),
    };
    let bare = plain.trim_start_matches('[').trim_end_matches(']');
    let port = plain.parse().map(|port: u16| (local, port).into());
    port.or_else(|_| plain.parse())
        .or_else(|_| bare.parse().map(|ip: IpAddr| (ip, DEFAULT_PORT).into()))
        .map_err(|_| {
            format!("--metrics {text:?}: write PORT, ADDRESS or ADDRESS:PORT, as 127.0.0.1:{DEFAULT_PORT}")
        })
}

/// Listens at an address. Nobody is answered before [`Http::start`].
///
/// # Errors
/// Why the kernel refuses it, and what to do, in a sentence.
pub fn listen(address: SocketAddr) -> std::result::Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => "choose another port, or 0 for any that is free",
            io::ErrorKind::AddrNotAvailable => {
                "no interface here has this address: use 127.0.0.1, or 0.0.0.0 for all"
            }
            io::ErrorKind::PermissionDenied => "choose a port above 1023",
            _ => "choose another address",
        };
        format!("--metrics {address}: {error}: {remedy}")
    })
}

impl Http {
    /// Starts to answer: until it is [given a relay](Http::serve), that it is live and not ready. `name` is the relay's, for the page's
    /// title.
    ///
    /// # Errors
    /// The process may have no more threads or descriptors.
    pub fn start(listener: TcpListener, name: &str) -> Result<Self> {
        let failed = |source| {
            Error::system(
                "serve",
                "metrics",
                source,
                "raise the limits on threads and open files (ulimit -u, ulimit -n)",
            )
        };
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let title = if name.is_empty() { "l2relay" } else { name };
        let page = PAGE.replace("{{name}}", &escaped(title));
        let relay = Arc::<OnceLock<Running>>::default();
        let served = Arc::clone(&relay);
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            let site = Rc::new(Site {
                relay: served,
                page: page.into(),
                local: address.ip().is_loopback(),
            });
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => drop(spawn_local(accept(listener, site))),
                    Err(error) => tracing::error!("metrics are not served: {error}"),
                }
                // An error says that the handle was dropped: an order to stop, too.
                let _ = stopped.await;
            });
        };
        let thread = thread::Builder::new()
            .name("l2relay-http".into())
            .spawn(serve)
            .map_err(failed)?;
        Ok(Self {
            relay,
            address,
            stop,
            thread,
        })
    }

    /// From now on what is asked is answered from this relay: the first that is given.
    pub fn serve(&self, relay: Reader) {
        let since = |snapshot: Snapshot| snapshot.time_s - snapshot.uptime_s;
        let start_s = relay.snapshot().map_or(0.0, since);
        let _ = self.relay.set(Running { relay, start_s });
    }

    /// Where it listens, with the port that the kernel chose if it was asked to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it; what is being answered is cut off.
    pub fn stop(self) {
        // It fails only if the thread is gone already.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metrics http://{}/", self.address)?;
        if !self.address.ip().is_loopback() {
            f.write_str(": whoever reaches this address can read them")?;
        }
        Ok(())
    }
}

async fn accept(listener: tokio::net::TcpListener, site: Rc<Site>) {
    let mut open: VecDeque<Served> = VecDeque::new();
    loop {
        open.retain(|served| !served.task.is_finished());
        if open.len() >= CONNECTIONS_MAX {
            close_oldest(&mut open).await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let task = spawn_local(serve(stream, Rc::clone(&site))).abort_handle();
                open.push_back(Served {
                    task,
                    since: Instant::now(),
                });
            }
            Err(error) => {
                tracing::debug!("metrics: {error}");
                // Out of descriptors, most likely: one is given back.
                close_oldest(&mut open).await;
                sleep(GRACE).await;
            }
        }
    }
}

async fn close_oldest(open: &mut VecDeque<Served>) {
    if let Some(oldest) = open.pop_front() {
        sleep(GRACE.saturating_sub(oldest.since.elapsed())).await;
        oldest.task.abort();
    }
}

async fn serve(stream: TcpStream, site: Rc<Site>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = site.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // Whatever goes wrong concerns the client alone, and it has been told if it could be.
    let _ = timeout(PATIENCE, connection).await;
}

impl Site {
    fn answer(&self, request: &Request<Incoming>) -> Answer {
        if let Err((status, why)) = addressed(request, self.local) {
            return plain(status, why);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        const WAITS: &str = "the relay waits for its ports";
        let running = self.relay.get();
        let gone = || {
            let text = running.map_or(WAITS, |_| "the relay has stopped");
            plain(StatusCode::SERVICE_UNAVAILABLE, format!("{text}\n"))
        };
        let snapshot = || Some((running?.start_s, running?.relay.snapshot()?));
        let health = |well: fn(&Health) -> bool| {
            let health = match running {
                Some(running) => running.relay.health(),
                None => Some(Health {
                    live: true,
                    ready: false,
                    reasons: vec![WAITS.into()],
                }),
            };
            let Some(health) = health else {
                return gone();
            };
            let status = if well(&health) {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            plain(status, format!("{health}\n"))
        };
        match request.uri().path() {
            "/" => page(self.page.clone()),
            "/metrics" => snapshot().map_or_else(gone, |(start_s, snapshot)| {
                let text = metrics::text(&snapshot, start_s);
                content(StatusCode::OK, metrics::CONTENT_TYPE, text)
            }),
            "/snapshot.json" => snapshot().map_or_else(gone, |(_, snapshot)| {
                match serde_json::to_string(&snapshot) {
                    Ok(text) => content(StatusCode::OK, "application/json", text),
                    Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
                }
            }),
            "/healthz" => health(|health| health.live),
            "/readyz" => health(|health| health.ready),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there are / /metrics /snapshot.json /healthz /readyz\n",
            ),
        }
    }
}

/// Whether the request is for this server (RFC 9112, section 3.2). One that is there for this machine alone answers to no other name than
/// `localhost` and to addresses: else a page from elsewhere could have its own name point here, and a browser let it read the answer.
fn addressed<T>(
    request: &Request<T>,
    local: bool,
) -> std::result::Result<(), (StatusCode, &'static str)> {
    let hosts: Vec<_> = request.headers().get_all(HOST).iter().collect();
    let host = match hosts[..] {
        [] if request.version() < Version::HTTP_11 => None,
        [host] => Some(host),
        _ => return Err((StatusCode::BAD_REQUEST, "one Host is needed\n")),
    };
    let host = match host.map(|host| Authority::try_from(host.as_bytes())) {
        Some(Err(_)) => return Err((StatusCode::BAD_REQUEST, "Host is malformed\n")),
        Some(Ok(host)) => Some(host),
        None => None,
    };
    let named = [host.as_ref(), request.uri().authority()];
    if local
        && !named
            .into_iter()
            .flatten()
            .all(|name| is_local(name.host()))
    {
        let why = "only localhost and addresses are answered to here\n";
        return Err((StatusCode::MISDIRECTED_REQUEST, why));
    }
    Ok(())
}

fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    content(status, "text/plain; charset=utf-8", text)
}

fn page(text: Bytes) -> Answer {
    let mut answer = content(StatusCode::OK, "text/html; charset=utf-8", text);
    // The page needs nothing from elsewhere; a name that was not escaped could not fetch anything either.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; frame-ancestors 'none'";
    answer.headers_mut().insert(
        CONTENT_SECURITY_POLICY,
        hyper::header::HeaderValue::from_static(policy),
    );
    answer
}

fn content(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, hyper::header::HeaderValue::from_static(value));
    }
    answer
}

fn escaped(text: &str) -> String {
    let safe = |c: char| match c {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '"' => "&quot;".into(),
        c => c.to_string(),
    };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_local_unless_another_is_named() {
        for (text, address) in [
            ("", "127.0.0.1:9922"),
            ("0", "127.0.0.1:0"),
            ("8080", "127.0.0.1:8080"),
            ("localhost", "127.0.0.1:9922"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("10.1.2.3", "10.1.2.3:9922"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("::1", "[::1]:9922"),
            ("[::1]", "[::1]:9922"),
            ("[::]:80", "[::]:80"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), address, "{text}");
        }
        for bad in [
            "65536",
            "-1",
            "example.org:80",
            "localhosts",
            ":80",
            "127.0.0.1:",
            "127.0.0.1:65536",
            "1.2.3",
            "http://127.0.0.1:80/",
        ] {
            let mistake = parse_address(bad).unwrap_err();
            assert!(
                mistake.contains(bad) && mistake.contains("ADDRESS"),
                "{mistake}"
            );
        }
    }

    #[test]
    fn an_address_that_is_taken_is_told() {
        let first = listen(parse_address("0").unwrap()).unwrap();
        let taken = first.local_addr().unwrap();
        let mistake = listen(taken).unwrap_err();
        assert!(
            mistake.contains(&taken.to_string()) && mistake.contains("another port"),
            "{mistake}"
        );
        let elsewhere = listen(parse_address("192.0.2.1:0").unwrap()).unwrap_err();
        assert!(elsewhere.contains("no interface here"), "{elsewhere}");
    }

    #[test]
    fn a_name_that_is_not_ours_is_not_answered_here() {
        let status = |hosts: &[&str], local| {
            let mut request = Request::get("/metrics");
            for host in hosts {
                request = request.header(HOST, *host);
            }
            let request = request.body(()).unwrap();
            addressed(&request, local).map_or_else(|(status, _)| status.as_u16(), |()| 200)
        };
        for host in [
            "localhost",
            "LocalHost:9922",
            "127.0.0.1:9922",
            "[::1]:80",
            "10.0.0.1",
        ] {
            assert_eq!(status(&[host], true), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9922",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(status(&[host], true), 421, "{host}");
            assert_eq!(status(&[host], false), 200, "{host}");
        }
        for hosts in [&[][..], &["localhost", "localhost"], &["a b"], &[""]] {
            assert_eq!(status(hosts, true), 400, "{hosts:?}");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let own = PAGE.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http:", "https:", "src=", "@import", "url(", "//cdn"] {
            assert!(!own.contains(elsewhere), "{elsewhere}");
        }
        assert_eq!(escaped("<a&\"b\">"), "&lt;a&amp;&quot;b&quot;&gt;");
    }
}
