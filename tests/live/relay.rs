//! The program as users run it: a child process on ports of the kernel's choice.
//!
//! It is the one built beside the tests, or that of `LIVE_RELAY`, such as an optimised one.
//!
//! Readiness is the banner's last line and the end is the end of its output, so nothing here waits
//! for a time; [`HANG`] only turns a hang into a failure.

use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

pub(crate) use rustix::process::Signal;

/// Longer than anything that works takes, also on a loaded host.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Awaits `future`, or panics with `what` when it hangs.
#[track_caller]
pub(crate) fn within<T>(
    what: &'static str,
    future: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(HANG, future).await {
            Ok(value) => value,
            Err(_) => panic!("{caller}: hangs: {what}"),
        }
    }
}

/// A file or directory of this test run; `name` must be unique among the tests.
pub(crate) fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

/// What became of a process that ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Panics unless the process ended with `code` and said each of `parts` on stderr.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is missing in {self:?}");
        }
    }
}

/// The program, running or about to end. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts the program with nothing in its environment but `env`.
    pub(crate) fn spawn(args: &[&str], env: &[(&str, &str)]) -> Self {
        let built = env!("CARGO_BIN_EXE_corelay");
        let program = std::env::var_os("LIVE_RELAY").unwrap_or_else(|| built.into());
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut stderr = child.stderr.take().expect("it is piped");
        let (lines, received) = channel();
        let forward = move || {
            // The receiver is gone when the test is over.
            let _ = stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line));
        };
        let collect = move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        Builder::new().name("relay-stdout".into()).spawn(forward).expect("a thread");
        let collect = Builder::new().name("relay-stderr".into()).spawn(collect).expect("a thread");
        Self { child, stdout: received, stderr: Some(collect) }
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Its next line on stdout; `None` when it has ended.
    fn line(&self) -> Option<String> {
        match self.stdout.recv_timeout(HANG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program neither goes on nor ends"),
        }
    }

    /// Waits until it has ended by itself.
    pub(crate) fn end(mut self) -> Ended {
        let stdout = std::iter::from_fn(|| self.line()).map(|line| line + "\n").collect();
        let status = self.child.wait().expect("it can be waited for");
        Ended { status, stdout, stderr: self.take_stderr() }
    }

    fn take_stderr(&mut self) -> String {
        self.stderr.take().map(|thread| thread.join().expect("it only reads")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the relay's stderr:\n{}", self.take_stderr());
        }
    }
}

/// Runs the program until it ends by itself.
pub(crate) fn run(args: &[&str], env: &[(&str, &str)]) -> Ended {
    Process::spawn(args, env).end()
}

/// A relay that serves.
pub(crate) struct Relay {
    process: Process,
    pub(crate) banner: String,
    pub(crate) listening: Vec<SocketAddr>,
    pub(crate) sha256: String,
}

impl Relay {
    /// Starts a relay on a free port of 127.0.0.1, unless `args` say where; pinned to no core,
    /// since tests run beside each other.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// The same with an environment.
    pub(crate) fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut all = Vec::new();
        if !args.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        if !args.contains(&"--cores") {
            all.push("--runtime-pin=false");
        }
        all.extend(args);
        match Self::serve(&all, env) {
            Ok(relay) => relay,
            Err(ended) => panic!("the relay does not start: {ended:?}"),
        }
    }

    /// Starts a relay with exactly these arguments, or says why it ended.
    pub(crate) fn serve(args: &[&str], env: &[(&str, &str)]) -> Result<Self, Ended> {
        let process = Process::spawn(args, env);
        let mut banner = String::new();
        while !banner.lines().any(|line| line.starts_with("watch: ")) {
            let Some(line) = process.line() else {
                return Err(Ended { stdout: banner, ..process.end() });
            };
            banner += &(line + "\n");
        }
        let listening = after(&banner, "listening on ")
            .map(|rest| rest.trim_end_matches(" (UDP)").parse().expect("an address"))
            .collect();
        let sha256 = after(&banner, "certificate SHA-256 ").next().expect("a hash").to_owned();
        Ok(Self { process, banner, listening, sha256 })
    }

    /// The URL of `root` at the first address.
    pub(crate) fn url(&self, root: &str) -> String {
        format!("moqt://{}/{root}", self.listening[0])
    }

    /// Answer of the public or the internal HTTP server: status and body.
    pub(crate) fn get(&self, server: &str, path: &str) -> (u16, String) {
        let prefix = format!("{server} HTTP on http://");
        let address = after(&self.banner, &prefix).next().expect("the server is on");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until the relay has ended by itself.
    pub(crate) fn end(self) -> Ended {
        self.process.end()
    }
}

/// What follows `prefix` on the lines that begin with it.
fn after<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.strip_prefix(prefix))
}
