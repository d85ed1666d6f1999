use super::*;
use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, Record},
};
use std::{io::Write, net::SocketAddr};
use tempfile::TempDir;
use tokio::net::UdpSocket;

struct Files(TempDir);

impl Files {
    fn new(hosts: &str, resolv_conf: Option<&str>) -> Self {
        let files = Self(TempDir::new().unwrap());
        files.write("hosts", hosts);
        if let Some(text) = resolv_conf {
            files.write("resolv.conf", text);
        }
        files
    }

    fn write(&self, name: &str, text: &str) {
        File::create(self.0.path().join(name))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    fn names(&self, family: Family, port: u16) -> Names {
        let path = self.0.path();
        Names::from_files(family, path.join("resolv.conf"), path.join("hosts"), port)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const HOSTS: &str =
    "192.0.2.1 both.example both\n2001:db8::1 both.example\n192.0.2.2 four.example\n";

#[tokio::test]
async fn without_resolv_conf_the_hosts_file_still_answers() {
    let names = Files::new(HOSTS, None).names(Family::Both, 53);
    // The files are gone by now: they are read at the first name.
    assert_eq!(names.lookup("both.example").await, Err(Refusal::DnsFailed));

    let files = Files::new(HOSTS, None);
    let names = files.names(Family::Both, 53);
    let both = vec![ip("192.0.2.1"), ip("2001:db8::1")];
    assert_eq!(names.lookup("both.example").await, Ok(both));
    assert_eq!(names.lookup("both").await, Ok(vec![ip("192.0.2.1")]));
    assert_eq!(names.lookup("other.example").await, Err(Refusal::DnsFailed));
}

#[tokio::test]
async fn localhost_needs_no_file_at_all() {
    let files = Files::new("", None);
    let names = files.names(Family::V4, 53);
    assert_eq!(names.lookup("localhost").await, Ok(vec![ip("127.0.0.1")]));
}

#[tokio::test]
async fn only_addresses_of_the_outgoing_family_are_given() {
    let files = Files::new(HOSTS, None);
    let six = files.names(Family::V6, 53);
    assert_eq!(
        six.lookup("both.example").await,
        Ok(vec![ip("2001:db8::1")])
    );
    assert_eq!(six.lookup("four.example").await, Err(Refusal::Unroutable));
}

/// A name server that knows A and AAAA of `known.example`.
async fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let query = question.queries[0].clone();
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.metadata.message_type = MessageType::Response;
            answer.add_query(query.clone());
            if query.name().to_ascii() == "known.example." {
                let data = match query.query_type() {
                    RecordType::AAAA => RData::AAAA("2001:db8::7".parse().unwrap()),
                    _ => RData::A("192.0.2.7".parse().unwrap()),
                };
                answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
            } else {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            socket
                .send_to(&answer.to_vec().unwrap(), peer)
                .await
                .unwrap();
        }
    });
    address
}

#[tokio::test]
async fn name_servers_are_asked_for_what_the_hosts_file_does_not_know() {
    let server = name_server().await;
    let resolv_conf = "nameserver 127.0.0.1\nsearch known.example\n";
    let files = Files::new(HOSTS, Some(resolv_conf));
    let names = files.names(Family::Both, server.port());
    let both = vec![ip("192.0.2.7"), ip("2001:db8::7")];
    assert_eq!(names.lookup("known.example").await, Ok(both));
    assert_eq!(
        names.lookup("unknown.example").await,
        Err(Refusal::DnsFailed)
    );
    assert_eq!(
        names.lookup("four.example").await,
        Ok(vec![ip("192.0.2.2")])
    );
}

#[tokio::test]
async fn a_resolv_conf_that_comes_later_is_found() {
    let server = name_server().await;
    let files = Files::new("", None);
    let names = files.names(Family::V4, server.port());
    assert_eq!(names.lookup("known.example").await, Err(Refusal::DnsFailed));
    files.write("resolv.conf", "nameserver 127.0.0.1\n");
    // As if the last look at the files was some time ago.
    names.sources.lock().unwrap().as_mut().unwrap().checked -= RECHECK;
    assert_eq!(
        names.lookup("known.example").await,
        Ok(vec![ip("192.0.2.7")])
    );
}
