//! The wire of production against a real TLS server on loopback that shows every byte.

use crate::scripted::CANARY;
use egress_core::ErrorClass;
use egress_proxmox::client::{
    BaseUrl, CertificateTrouble, Client, ClientConfig, Failure, HttpsWire, IsoName, Kind, NodeName,
    Vmid,
};
use rcgen::{CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

/// An authority and the file that holds it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }
}

/// What the server does with a request.
#[derive(Clone)]
enum Manner {
    /// Sends these bytes, and closes the connection if they say so.
    Say(String),
    /// Sends these bytes once the request begins, and only then reads the rest of it.
    SayEarly(String),
    /// Closes the connection without an answer.
    Close,
    /// Never answers.
    Silence,
}

/// A server; requests are noted as they arrived, with the number of their connection.
struct Server {
    url: BaseUrl,
    seen: Arc<Mutex<Vec<(usize, String)>>>,
    connections: Arc<Mutex<usize>>,
}

impl Server {
    async fn start(
        authority: &Authority,
        names: &[&str],
        years: (i32, i32),
        manner: Manner,
    ) -> Self {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &authority.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self {
            url: format!("https://127.0.0.1:{port}").parse().unwrap(),
            seen: Arc::default(),
            connections: Arc::default(),
        };
        let (seen, connections) = (server.seen.clone(), server.connections.clone());
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let number = {
                    let mut count = connections.lock().unwrap();
                    *count += 1;
                    *count
                };
                let (acceptor, seen, manner) = (acceptor.clone(), seen.clone(), manner.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    if let Manner::SayEarly(bytes) = &manner {
                        let _ = tls.read(&mut [0_u8; 1024]).await;
                        let _ = tls.write_all(bytes.as_bytes()).await;
                        let _ = tls.shutdown().await;
                        let _ = tls.read_to_end(&mut Vec::new()).await;
                        return;
                    }
                    while let Some(request) = request(&mut tls).await {
                        seen.lock().unwrap().push((number, request));
                        match &manner {
                            Manner::Say(bytes) => {
                                if tls.write_all(bytes.as_bytes()).await.is_err() {
                                    return;
                                }
                                let _ = tls.flush().await;
                                if bytes.contains("onnection: close") {
                                    let _ = tls.shutdown().await;
                                    return;
                                }
                            }
                            Manner::SayEarly(_) | Manner::Close => return,
                            Manner::Silence => std::future::pending().await,
                        }
                    }
                });
            }
        });
        server
    }

    fn requests(&self) -> Vec<(usize, String)> {
        self.seen.lock().unwrap().clone()
    }
}

/// One request, head and body by its length; `None` at the end of the connection.
async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    let mut next = [0_u8; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                })
                .unwrap_or(0_usize);
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut next).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&next[..read]),
        }
    }
}

struct Bench {
    client: Client,
    ca: PathBuf,
    _dir: TempDir,
}

fn bench(urls: Vec<BaseUrl>, ca: Option<&Authority>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    fs::write(&token_file, format!("op@pve!t1={CANARY}")).unwrap();
    let path = dir.path().join("ca.pem");
    if let Some(ca) = ca {
        fs::write(&path, &ca.pem).unwrap();
    }
    let wire = Arc::new(HttpsWire::new(path.clone()));
    Bench {
        client: Client::new(ClientConfig { urls, token_file }, wire),
        ca: path,
        _dir: dir,
    }
}

const NAMES: &[&str] = &["127.0.0.1", "pve1"];
const NOW: (i32, i32) = (2020, 4000);
const VERSION: &str = "{\"data\":{\"version\":\"9.2.11\"}}";
const NULL: &str = "{\"data\":null}";
const UPID: &str = "{\"data\":\"UPID:pve1:00000ACD:00006AE8:679A423B:qmstart:101:op@pve!t1:\"}";

/// A success with this body, on a connection that stays.
fn ok(body: &str) -> Manner {
    Manner::Say(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: Keep-Alive\r\n\r\n{body}",
        body.len()
    ))
}

fn node() -> NodeName {
    "pve1".parse().unwrap()
}

fn vmid() -> Vmid {
    Vmid::new(101).unwrap()
}

async fn start(client: &Client) -> Result<(), Failure> {
    client.start(&node(), vmid())?.send().await.map(drop)
}

#[tokio::test]
async fn reads_share_a_connection_and_mutations_have_one_each() {
    let authority = Authority::new();
    let reads = Server::start(&authority, NAMES, NOW, ok(VERSION)).await;
    let reader = bench(vec![reads.url.clone()], Some(&authority));
    for _ in 0..3 {
        reader.client.version().await.unwrap();
    }
    let seen = reads.requests();
    assert_eq!(seen.len(), 3);
    assert!(
        seen.iter().all(|(connection, _)| *connection == 1),
        "{seen:?}"
    );

    let writes = Server::start(&authority, NAMES, NOW, ok(UPID)).await;
    let writer = bench(vec![writes.url.clone()], Some(&authority));
    for _ in 0..3 {
        start(&writer.client).await.unwrap();
    }
    let connections: Vec<_> = writes.requests().iter().map(|(c, _)| *c).collect();
    assert_eq!(connections, [1, 2, 3]);
}

#[tokio::test]
async fn x8_the_bytes_of_a_request_are_what_the_server_takes() {
    let authority = Authority::new();
    let server = Server::start(&authority, NAMES, NOW, ok(NULL)).await;
    let bench = bench(vec![server.url.clone()], Some(&authority));
    let client = &bench.client;
    // The answers do not fit; the requests are what counts here.
    let _ = client.vm_config(&node(), vmid()).await;
    let _ = start(client).await;
    let _ = client
        .resize(&node(), vmid(), "scsi0", 1 << 30)
        .unwrap()
        .send()
        .await;
    let _ = client.delete_vm(&node(), vmid()).unwrap().send().await;
    let name: IsoName = "px-1.iso".parse().unwrap();
    let image = b"CD001".as_slice().into();
    let _ = client
        .upload_iso(&node(), "isos", &name, image)
        .unwrap()
        .send()
        .await;

    let seen: Vec<String> = server
        .requests()
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let first: Vec<_> = seen
        .iter()
        .map(|text| text.lines().next().unwrap())
        .collect();
    assert_eq!(
        first,
        [
            "GET /api2/json/nodes/pve1/qemu/101/config HTTP/1.1",
            "POST /api2/json/nodes/pve1/qemu/101/status/start HTTP/1.1",
            "PUT /api2/json/nodes/pve1/qemu/101/resize HTTP/1.1",
            "DELETE /api2/json/nodes/pve1/qemu/101?purge=1 HTTP/1.1",
            "POST /api2/json/nodes/pve1/storage/isos/upload HTTP/1.1",
        ]
    );
    let authority = server.url.authority();
    for text in &seen {
        let head = text.split_once("\r\n\r\n").unwrap().0.to_ascii_lowercase();
        assert_eq!(
            head.matches(&format!("\r\nhost: {authority}")).count(),
            1,
            "{head}"
        );
        assert_eq!(
            head.matches("authorization: pveapitoken=").count(),
            1,
            "{head}"
        );
        assert!(!head.contains("transfer-encoding"), "{head}");
        assert!(
            !head.contains("expect:") && !head.contains("accept-encoding"),
            "{head}"
        );
    }
    let length = |text: &str| {
        let head = text.to_ascii_lowercase();
        let lines: Vec<_> = head
            .lines()
            .filter(|l| l.starts_with("content-length"))
            .collect();
        lines.join(",")
    };
    assert_eq!(length(&seen[0]), "");
    assert_eq!(length(&seen[1]), "content-length: 0");
    assert_eq!(length(&seen[2]), "content-length: 18");
    assert!(
        seen[2].ends_with("\r\n\r\ndisk=scsi0&size=1G"),
        "{}",
        seen[2]
    );
    assert_eq!(length(&seen[3]), "");
    let body = seen[4].split_once("\r\n\r\n").unwrap().1;
    assert_eq!(length(&seen[4]), format!("content-length: {}", body.len()));
}

#[tokio::test]
async fn a_mutation_that_got_no_answer_was_sent_once_and_its_outcome_is_unknown() {
    let authority = Authority::new();
    let first = Server::start(&authority, NAMES, NOW, Manner::Close).await;
    let second = Server::start(&authority, NAMES, NOW, ok(UPID)).await;
    let bench = bench(
        vec![first.url.clone(), second.url.clone()],
        Some(&authority),
    );
    let failure = start(&bench.client).await.unwrap_err();
    assert_eq!(failure.kind, Kind::CutOff, "{failure}");
    assert_eq!(failure.class, ErrorClass::OutcomeUnknown);
    assert_eq!(first.requests().len(), 1);
    assert_eq!(second.requests().len(), 0);
}

#[tokio::test]
async fn a_server_that_is_down_costs_a_mutation_nothing_but_the_next_try() {
    let authority = Authority::new();
    let up = Server::start(&authority, NAMES, NOW, ok(UPID)).await;
    // A port that was free a moment ago and has no listener.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let down: BaseUrl = format!("https://127.0.0.1:{port}").parse().unwrap();
    let both = bench(vec![down.clone(), up.url.clone()], Some(&authority));
    start(&both.client).await.unwrap();

    let alone = bench(vec![down], Some(&authority));
    let failure = start(&alone.client).await.unwrap_err();
    assert_eq!(failure.kind, Kind::NotSent, "{failure}");
    assert_eq!(failure.class, ErrorClass::Transient);
    assert!(
        !failure.sent && failure.said.contains("refused"),
        "{failure}"
    );
    let failure = alone.client.version().await.unwrap_err();
    assert_eq!(failure.kind, Kind::NotSent, "{failure}");
}

#[tokio::test]
async fn t1_a_server_that_never_answers_is_left_at_the_deadline() {
    let authority = Authority::new();
    let server = Server::start(&authority, NAMES, NOW, Manner::Silence).await;
    let bench = bench(vec![server.url.clone()], Some(&authority));
    let client = bench.client.within(Duration::from_millis(400));
    let begun = Instant::now();
    let read = client.version().await.unwrap_err();
    assert_eq!(
        (read.kind, read.class),
        (Kind::CutOff, ErrorClass::Transient)
    );
    let written = start(&client).await.unwrap_err();
    assert_eq!(
        (written.kind, written.class),
        (Kind::CutOff, ErrorClass::OutcomeUnknown)
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn t3_a_permit_that_expires_while_the_connection_comes_about_sends_nothing() {
    let authority = Authority::new();
    let server = Server::start(&authority, NAMES, NOW, ok(UPID)).await;
    let bench = bench(vec![server.url.clone()], Some(&authority));
    let prepared = bench.client.start(&node(), vmid()).unwrap();
    let failure = prepared
        .write_before(Instant::now())
        .send()
        .await
        .unwrap_err();
    assert_eq!(failure.kind, Kind::NotSent);
    assert!(
        !failure.sent && failure.said.contains("permit"),
        "{failure}"
    );
    assert_eq!(*server.connections.lock().unwrap(), 1);
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn f1_the_reason_phrase_arrives_as_it_was_sent() {
    let authority = Authority::new();
    for (answer, kind, said) in [
        (
            "HTTP/1.1 500 VM is locked (backup)\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{\"data\":null}",
            "Locked",
            "VM is locked (backup)",
        ),
        (
            "HTTP/1.1 595 No route to host\r\nConnection: close\r\n\r\n",
            "NodeUnreachable",
            "No route to host (between cluster nodes)",
        ),
        (
            "HTTP/1.1 401 Authentication failed!\r\nConnection: close\r\n\r\n",
            "Unauthenticated",
            "Authentication failed!",
        ),
        (
            "HTTP/1.0 502 Bad Gateway\r\nConnection: close\r\n\r\n<html>",
            "SomethingInFront",
            "a page instead of an answer of the API (something in front of Proxmox VE answered: 502 Bad Gateway)",
        ),
    ] {
        let server = Server::start(&authority, NAMES, NOW, Manner::Say(answer.to_owned())).await;
        let bench = bench(vec![server.url.clone()], Some(&authority));
        let failure = bench.client.version().await.unwrap_err();
        assert_eq!((failure.kind.as_str(), failure.said.as_str()), (kind, said));
        let failure = start(&bench.client).await.unwrap_err();
        assert_eq!((failure.kind.as_str(), failure.said.as_str()), (kind, said));
    }
}

async fn trouble(server: &Server, ca: &Authority) -> CertificateTrouble {
    let bench = bench(vec![server.url.clone()], Some(ca));
    let read = bench.client.version().await.unwrap_err();
    let written = start(&bench.client).await.unwrap_err();
    for failure in [&read, &written] {
        assert_eq!(failure.class, ErrorClass::Permanent, "{failure}");
        assert!(!failure.sent);
    }
    assert_eq!(read.kind, written.kind);
    assert_eq!(server.requests().len(), 0);
    match read.kind {
        Kind::CertificateInvalid(trouble) => *trouble,
        other => panic!("{other:?}: {}", read.said),
    }
}

#[tokio::test]
async fn b79_an_answer_that_comes_before_all_of_an_upload_was_sent_is_read() {
    let authority = Authority::new();
    let early = "HTTP/1.1 501 for data too large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let manner = Manner::SayEarly(early.to_owned());
    let server = Server::start(&authority, NAMES, NOW, manner).await;
    let bench = bench(vec![server.url.clone()], Some(&authority));
    let name: IsoName = "px-1.iso".parse().unwrap();
    let image = vec![0_u8; 8 << 20].into();
    let upload = bench.client.upload_iso(&node(), "isos", &name, image);
    let failure = upload.unwrap().send().await.unwrap_err();
    assert_eq!(failure.status, Some(501), "{failure}");
    assert!(failure.said.contains("data too large"), "{failure}");
}

#[tokio::test]
async fn b142_a_certificate_that_cannot_be_accepted_says_which_and_why() {
    let (ours, other) = (Authority::new(), Authority::new());
    let server = Server::start(&ours, NAMES, NOW, ok(VERSION)).await;
    assert_eq!(
        trouble(&server, &other).await,
        CertificateTrouble::UnknownCa
    );

    let names = &["pve1", "pve1.example.org", "192.0.2.8"];
    let server = Server::start(&ours, names, NOW, ok(VERSION)).await;
    assert_eq!(
        trouble(&server, &ours).await,
        CertificateTrouble::WrongName {
            expected: "127.0.0.1".to_owned(),
            presented: names.map(str::to_owned).to_vec(),
        }
    );

    let server = Server::start(&ours, NAMES, (2010, 2020), ok(VERSION)).await;
    assert!(matches!(
        trouble(&server, &ours).await,
        CertificateTrouble::Expired {
            not_after: Some(1_577_836_800)
        }
    ));

    let server = Server::start(&ours, NAMES, (3000, 4000), ok(VERSION)).await;
    assert!(matches!(
        trouble(&server, &ours).await,
        CertificateTrouble::NotYetValid {
            not_before: Some(_)
        }
    ));
}

#[tokio::test]
async fn b142_the_authority_is_read_when_needed_and_again_when_it_changed() {
    let (ours, other) = (Authority::new(), Authority::new());
    let server = Server::start(&ours, NAMES, NOW, ok(VERSION)).await;
    let bench = bench(vec![server.url.clone()], None);
    let expect = |failure: Failure, told: &str| {
        assert_eq!(failure.kind, Kind::CaUnusable, "{failure}");
        assert_eq!(failure.class, ErrorClass::Permanent);
        assert!(failure.said.contains(told) && !failure.sent, "{failure}");
        assert!(failure.said.contains("ca.pem"), "{failure}");
    };
    expect(bench.client.version().await.unwrap_err(), "cannot be read");
    replace(&bench.ca, "");
    expect(
        bench.client.version().await.unwrap_err(),
        "holds no certificate",
    );
    replace(
        &bench.ca,
        "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n",
    );
    expect(bench.client.version().await.unwrap_err(), "ca.pem");
    replace(&bench.ca, &other.pem);
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(failure.kind.as_str(), "CertificateInvalid", "{failure}");
    replace(&bench.ca, &format!("{}\n{}", other.pem, ours.pem));
    bench.client.version().await.unwrap();
    bench.client.version().await.unwrap();
    let used = *server.connections.lock().unwrap();
    // Trust that is taken away ends the connections that were made with it.
    replace(&bench.ca, &other.pem);
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(failure.kind.as_str(), "CertificateInvalid", "{failure}");
    assert!(*server.connections.lock().unwrap() > used);
}

/// As a rotation does it: a new file takes the old one's place.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn plain_http_behind_the_port_is_not_taken_for_an_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let url = format!("https://127.0.0.1:{port}").parse().unwrap();
    let bench = bench(vec![url], Some(&Authority::new()));
    let failure = start(&bench.client).await.unwrap_err();
    assert_eq!(failure.kind, Kind::NotSent, "{failure}");
    assert_eq!(failure.class, ErrorClass::Transient);
}

#[tokio::test]
async fn b143_a_handshake_that_never_completes_ends_by_the_deadline_with_nothing_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((tcp, _)) = listener.accept().await {
            held.push(tcp);
        }
    });
    let bench = bench(vec![url.parse().unwrap()], Some(&Authority::new()));
    let client = bench.client.within(Duration::from_millis(400));
    let failure = start(&client).await.unwrap_err();
    assert_eq!(failure.kind, Kind::NotSent, "{failure}");
    assert_eq!(failure.class, ErrorClass::Transient);
    let failure = client.version().await.unwrap_err();
    assert_eq!(failure.class, ErrorClass::Transient, "{failure}");
    held.abort();
}

#[tokio::test]
async fn b143_an_answer_that_stalls_half_way_ends_by_the_deadline() {
    let authority = Authority::new();
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"data\":";
    let server = Server::start(&authority, NAMES, NOW, Manner::Say(half.to_owned())).await;
    let bench = bench(vec![server.url.clone()], Some(&authority));
    let client = bench.client.within(Duration::from_millis(400));
    let read = client.version().await.unwrap_err();
    assert_eq!(read.class, ErrorClass::Transient, "{read}");
    let written = start(&client).await.unwrap_err();
    assert_eq!(written.class, ErrorClass::OutcomeUnknown, "{written}");
}
