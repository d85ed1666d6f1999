//! A connection against a server that this file plays.

use super::*;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};

const PROCEDURE: Procedure = Procedure::DomainGetState;

fn pair() -> (Connection, DuplexStream) {
    let (ours, theirs) = duplex(1 << 20);
    (Connection::over(Box::new(ours)), theirs)
}

fn soon() -> Deadlines {
    Deadlines::within(Duration::from_secs(10))
}

async fn say(
    server: &mut DuplexStream,
    kind: MessageType,
    serial: u32,
    status: Status,
    body: &[u8],
) {
    say_as(
        server,
        REMOTE,
        PROCEDURE.number(),
        kind,
        serial,
        status,
        body,
    )
    .await;
}

async fn say_as(
    server: &mut DuplexStream,
    program: u32,
    procedure: u32,
    kind: MessageType,
    serial: u32,
    status: Status,
    body: &[u8],
) {
    let header = Header {
        program,
        procedure,
        kind,
        serial,
        status,
    };
    let body = body.to_vec();
    let bytes = Frame { header, body }.encode().unwrap();
    server.write_all(&bytes).await.unwrap();
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order_and_events_nobody() {
    let (connection, mut server) = pair();
    let ask = || connection.call(PROCEDURE, "a", Writer::new(), soon(), |answer| answer.u32());
    let play = async {
        let first = Frame::read(&mut server).await.unwrap().header.serial;
        let second = Frame::read(&mut server).await.unwrap().header.serial;
        say(&mut server, MessageType::Event, 0, Status::Ok, &[9; 40]).await;
        say(
            &mut server,
            MessageType::Reply,
            77,
            Status::Ok,
            &[0, 0, 0, 9],
        )
        .await;
        say(
            &mut server,
            MessageType::Reply,
            second,
            Status::Ok,
            &[0, 0, 0, 2],
        )
        .await;
        say(
            &mut server,
            MessageType::Reply,
            first,
            Status::Ok,
            &[0, 0, 0, 1],
        )
        .await;
    };
    let (one, two, ()) = tokio::join!(ask(), ask(), play);
    assert_eq!((one.unwrap(), two.unwrap()), (1, 2));
}

#[tokio::test]
async fn the_end_of_a_connection_ends_its_calls_and_says_what_may_have_happened() {
    let (connection, mut server) = pair();
    let read = connection.call(PROCEDURE, "a", Writer::new(), soon(), |_| Ok(()));
    let change = Procedure::DomainDestroyFlags;
    let change = connection.call(change, "a", Writer::new(), soon(), |_| Ok(()));
    let play = async {
        Frame::read(&mut server).await.unwrap();
        Frame::read(&mut server).await.unwrap();
        drop(server);
    };
    let (read, change, ()) = tokio::join!(read, change, play);
    let (read, change) = (read.unwrap_err(), change.unwrap_err());
    assert_eq!(
        (read.kind, read.class),
        (Kind::CutOff, egress_core::ErrorClass::Transient)
    );
    assert_eq!(
        (change.kind, change.class),
        (Kind::CutOff, egress_core::ErrorClass::OutcomeUnknown)
    );
    assert!(!connection.is_open());
    let after = connection.call(PROCEDURE, "a", Writer::new(), soon(), |_| Ok(()));
    assert_eq!(after.await.unwrap_err().kind, Kind::NotSent);
}

#[tokio::test]
async fn what_is_no_message_ends_the_connection() {
    let (connection, mut server) = pair();
    let call = connection.call(PROCEDURE, "a", Writer::new(), soon(), |_| Ok(()));
    let play = async {
        Frame::read(&mut server).await.unwrap();
        server
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
    };
    let (call, ()) = tokio::join!(call, play);
    assert!(
        call.unwrap_err()
            .said
            .contains("its length is out of bounds")
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_costs_each_call_its_deadline() {
    let (connection, _server) = pair();
    let begun = Instant::now();
    let call = connection.call(PROCEDURE, "a", Writer::new(), soon(), |_| Ok(()));
    assert_eq!(call.await.unwrap_err().said, "no answer: no answer in time");
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_are_given_and_asked_for_and_silence_ends_the_connection() {
    let (connection, mut server) = pair();
    say_as(
        &mut server,
        KEEPALIVE,
        PING,
        MessageType::Event,
        0,
        Status::Ok,
        &[],
    )
    .await;
    let pong = Frame::read(&mut server).await.unwrap();
    assert_eq!(
        (pong.header.program, pong.header.procedure),
        (KEEPALIVE, PONG)
    );
    let begun = Instant::now();
    for _ in 0..UNANSWERED {
        let ping = Frame::read(&mut server).await.unwrap();
        assert_eq!(
            (ping.header.program, ping.header.procedure),
            (KEEPALIVE, PING)
        );
        assert!(connection.is_open());
    }
    assert_eq!(begun.elapsed(), QUIET * UNANSWERED);
    tokio::time::sleep(2 * QUIET).await;
    assert!(!connection.is_open());
    let call = connection.call(PROCEDURE, "a", Writer::new(), soon(), |_| Ok(()));
    let said = call.await.unwrap_err().said;
    assert!(said.contains("no sign of life"), "{said}");
}

#[tokio::test]
async fn a_stream_is_sent_in_parts_and_its_refusal_is_told() {
    let bytes = vec![7; STREAM_CHUNK + 5];
    let upload = Procedure::StorageVolUpload;
    for refused in [false, true] {
        let (connection, mut server) = pair();
        let call = connection.call_with_stream(upload, "v", Writer::new(), &bytes, soon());
        let play = async {
            let call = Frame::read(&mut server).await.unwrap().header;
            say(
                &mut server,
                MessageType::Reply,
                call.serial,
                Status::Ok,
                &[],
            )
            .await;
            let mut got = 0;
            loop {
                let part = Frame::read(&mut server).await.unwrap();
                assert_eq!(
                    (part.header.kind, part.header.serial),
                    (MessageType::Stream, call.serial)
                );
                got += part.body.len();
                if part.header.status == Status::Ok || refused {
                    break;
                }
            }
            let (status, body) = if refused {
                let body = Writer::new()
                    .i32(38)
                    .i32(0)
                    .optional(Some("write: No space left on device"));
                (Status::Error, body.into_bytes())
            } else {
                (Status::Ok, Vec::new())
            };
            say(&mut server, MessageType::Stream, call.serial, status, &body).await;
            // What was sent before the refusal was heard.
            let mut rest = Vec::new();
            let _whatever =
                tokio::time::timeout(Duration::from_millis(20), server.read_to_end(&mut rest))
                    .await;
            got
        };
        let (answer, got) = tokio::join!(call, play);
        if refused {
            assert_eq!(answer.unwrap_err().kind, Kind::NoRoom);
        } else {
            answer.unwrap();
            assert_eq!(got, bytes.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_written_in_its_time_was_not_sent_and_nothing_follows_it() {
    let (ours, server) = duplex(64);
    let connection = Connection::over(Box::new(ours));
    let long = Writer::new().text(&"x".repeat(500));
    let change = Procedure::DomainDefineXmlFlags;
    let call = connection.call(change, "a", long, soon(), |_| Ok(()));
    let failure = call.await.unwrap_err();
    assert_eq!(
        (failure.kind, failure.class),
        (Kind::NotSent, egress_core::ErrorClass::Transient)
    );
    assert!(!connection.is_open());
    drop(server);
}

#[tokio::test]
async fn a_call_that_is_dropped_half_written_ends_the_connection() {
    let (ours, _server) = duplex(64);
    let connection = Connection::over(Box::new(ours));
    let long = Writer::new().text(&"x".repeat(500));
    let change = Procedure::DomainDefineXmlFlags;
    let call = connection.call(change, "a", long, soon(), |_| Ok(()));
    let dropped = tokio::time::timeout(Duration::from_millis(20), call).await;
    assert!(dropped.is_err());
    assert!(!connection.is_open());
}

#[tokio::test]
async fn a_stream_is_read_to_its_end_and_no_further_than_was_asked_for() {
    let download = Procedure::StorageVolDownload;
    for too_long in [false, true] {
        let (connection, mut server) = pair();
        let call = connection.call_for_stream(download, "v", Writer::new(), 8, soon());
        let play = async {
            let serial = Frame::read(&mut server).await.unwrap().header.serial;
            let stream = MessageType::Stream;
            // The first bytes overtake the answer, as libvirtd's do now and then.
            say(&mut server, stream, serial, Status::Continue, &[7; 5]).await;
            say(&mut server, MessageType::Reply, serial, Status::Ok, &[]).await;
            let rest: &[u8] = if too_long { &[7; 4] } else { &[7; 3] };
            say(&mut server, stream, serial, Status::Continue, rest).await;
            if too_long {
                return;
            }
            // The end, told twice.
            say(&mut server, stream, serial, Status::Continue, &[]).await;
            let end = Frame::read(&mut server).await.unwrap().header;
            assert_eq!((end.kind, end.status), (stream, Status::Ok));
            say(&mut server, stream, serial, Status::Continue, &[]).await;
            say(&mut server, stream, serial, Status::Ok, &[]).await;
        };
        let (read, ()) = tokio::join!(call, play);
        if too_long {
            assert_eq!(read.unwrap_err().kind, Kind::UnexpectedAnswer);
        } else {
            assert_eq!(read.unwrap(), [7; 8]);
        }
    }
}
