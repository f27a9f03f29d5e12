//! The HTTP servers: the public one for clients, the internal one for operators. Both are small
//! and guarded: a bounded number of connections, one request on each, a time for its header and a
//! time for the whole.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

use crate::metrics;

/// Connections that one server has at a time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// From accepting a connection to the last byte of its answer.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a server waits when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a shard may take to hand out its numbers before it counts as stalled.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(1);

const TEXT: (HeaderName, HeaderValue) =
    (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
const ANY_ORIGIN: (HeaderName, HeaderValue) =
    (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
const ONLY_GET: (HeaderName, HeaderValue) =
    (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET"));

/// A wish for the shard's numbers, and where they go. Dropped unanswered when the shard's mailbox
/// is full or too many wait already.
pub type Scrape = oneshot::Sender<Box<metrics::Snapshot>>;

/// Health and the certificate's hash, for pages of any origin.
pub fn public(certificate_sha256: Option<String>) -> Router {
    let sha256: Option<Arc<str>> = certificate_sha256.map(Arc::from);
    Router::new()
        .route("/health", get(health).options(preflight))
        .route("/certificate.sha256", get(certificate).options(preflight))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(sha256)
}

/// Health and metrics.
pub fn internal(scrapes: mpsc::Sender<Scrape>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(scrape))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(scrapes)
}

async fn health() -> Response {
    ([TEXT, ANY_ORIGIN], "ok\n").into_response()
}

async fn preflight() -> Response {
    (StatusCode::NO_CONTENT, [ANY_ORIGIN, ONLY_GET]).into_response()
}

async fn certificate(State(sha256): State<Option<Arc<str>>>) -> Response {
    match sha256 {
        Some(hex) => ([TEXT, ANY_ORIGIN], hex.to_string()).into_response(),
        None => (StatusCode::NOT_FOUND, [TEXT, ANY_ORIGIN], "no certificate\n").into_response(),
    }
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, [TEXT, ANY_ORIGIN], "not found\n").into_response()
}

async fn scrape(State(scrapes): State<mpsc::Sender<Scrape>>) -> Response {
    let (reply, answer) = oneshot::channel();
    if scrapes.try_send(reply).is_err() {
        return unavailable("too many scrapes at once\n");
    }
    match timeout(SNAPSHOT_TIME_MAX, answer).await {
        Ok(Ok(snapshot)) => {
            let text = metrics::render(&[*snapshot]);
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(_)) => {
            error!("shard 0 does not take its mail: it is stalled or overloaded");
            unavailable("shard 0 does not take its mail\n")
        }
        Err(_) => {
            error!("shard 0 did not answer within 1 s: it is stalled or overloaded");
            unavailable("shard 0 did not answer within 1 s\n")
        }
    }
}

fn unavailable(text: &'static str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [TEXT], text).into_response()
}

/// Serves for ever. Must run on a `LocalSet` or a runtime of one thread.
pub async fn serve(listener: TcpListener, router: Router, header_time_max: Duration) -> Infallible {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("nobody closes the semaphore");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("accepting an HTTP connection failed: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            answer(stream, router, header_time_max).await;
            drop(permit);
        });
    }
}

async fn answer(stream: TcpStream, router: Router, header_time_max: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_time_max)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(CONNECTION_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("an HTTP connection failed: {error}"),
        Err(_) => debug!("an HTTP connection took longer than {CONNECTION_TIME_MAX:?}"),
    }
}
