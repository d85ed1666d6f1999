use super::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    task::JoinHandle,
};

const IDLE: Duration = Duration::from_mins(1);

struct Tunnel {
    client: DuplexStream,
    target: DuplexStream,
    end: JoinHandle<(TunnelEnd, u64, u64)>,
}

fn tunnel(early: &'static [u8], space: usize) -> Tunnel {
    let (client, mut client_side) = duplex(space);
    let (target, mut target_side) = duplex(space);
    let end = tokio::spawn(async move {
        let (sent, received) = (Counter::default(), Counter::default());
        let early = Bytes::from_static(early);
        let counters = [&sent, &received];
        let end = copy_both_ways(&mut client_side, early, &mut target_side, IDLE, counters).await;
        (end, sent.get(), received.get())
    });
    Tunnel {
        client,
        target,
        end,
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_client_sent_early_comes_first() {
    let mut tunnel = tunnel(b"early ", 64);
    tunnel.client.write_all(b"late").await.unwrap();
    let mut read = [0; 10];
    tunnel.target.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"early late");
    drop((tunnel.client, tunnel.target));
    assert_eq!(tunnel.end.await.unwrap().1, 10);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_side_is_passed_on_and_the_other_goes_on() {
    for client_first in [true, false] {
        let tunnel = tunnel(b"", 64);
        let (mut first, mut second) = if client_first {
            (tunnel.client, tunnel.target)
        } else {
            (tunnel.target, tunnel.client)
        };
        first.write_all(b"question").await.unwrap();
        first.shutdown().await.unwrap();
        let mut question = String::new();
        second.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        second.write_all(b"answer").await.unwrap();
        drop(second);
        let mut answer = String::new();
        first.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
        assert_eq!(tunnel.end.await.unwrap().0, TunnelEnd::Finished);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_tunnel_ends_after_the_idle_time() {
    let start = Instant::now();
    let tunnel = tunnel(b"", 64);
    assert_eq!(tunnel.end.await.unwrap().0, TunnelEnd::Idle);
    assert_eq!(start.elapsed(), IDLE);
}

#[tokio::test(start_paused = true)]
async fn a_stream_in_one_direction_is_not_idle() {
    let start = Instant::now();
    let Tunnel {
        client,
        mut target,
        end,
    } = tunnel(b"", 64);
    let (mut reading, _writing) = tokio::io::split(client);
    for _ in 0..10 {
        tokio::time::sleep(IDLE / 2).await;
        target.write_all(b"tick").await.unwrap();
        reading.read_exact(&mut [0; 4]).await.unwrap();
    }
    assert_eq!(end.await.unwrap(), (TunnelEnd::Idle, 0, 40));
    assert_eq!(start.elapsed(), IDLE * 6);
}

#[tokio::test(start_paused = true)]
async fn b190_a_half_closed_tunnel_ends_after_the_idle_time() {
    let start = Instant::now();
    let Tunnel {
        client,
        target,
        end,
    } = tunnel(b"", 64);
    drop(client);
    assert_eq!(end.await.unwrap().0, TunnelEnd::Idle);
    assert_eq!(start.elapsed(), IDLE);
    drop(target);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_ends_the_tunnel_after_the_idle_time() {
    let Tunnel {
        client,
        mut target,
        end,
    } = tunnel(b"", 8);
    target.write_all(&[0; 16]).await.unwrap();
    assert_eq!(end.await.unwrap().0, TunnelEnd::Idle);
    drop((client, target));
}

#[tokio::test]
async fn every_byte_arrives_in_order_through_narrow_streams() {
    let Tunnel {
        client,
        target,
        end,
    } = tunnel(b"", 7);
    let up: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let down: Vec<u8> = up.iter().rev().copied().collect();
    let exchange = |stream: DuplexStream, out: Vec<u8>| async move {
        let (mut reading, mut writing) = tokio::io::split(stream);
        let write = async {
            writing.write_all(&out).await.unwrap();
            writing.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(write, reading.read_to_end(&mut got));
        read.unwrap();
        got
    };
    let (at_client, at_target) =
        tokio::join!(exchange(client, up.clone()), exchange(target, down.clone()));
    assert!(at_client == down && at_target == up);
    assert_eq!(end.await.unwrap(), (TunnelEnd::Finished, 100_000, 100_000));
}
