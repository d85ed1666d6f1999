//! CONNECT: a dial, then a tunnel.

use crate::{
    answer::{AnswerBody, Refusal, target_answer},
    client::Client,
    clock::ClockedStream,
    metrics::Metrics,
    server::Shared,
    target::Target,
    tunnel::{TunnelEnd, copy_both_ways},
};
use http::{Request, Response};
use hyper::{
    body::{Bytes, Incoming},
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A CONNECT that was granted: what is needed once hyper lets go of the client.
pub(crate) struct Granted {
    upgrade: OnUpgrade,
    target: TcpStream,
}

/// Dials the target of a CONNECT; a granted one waits for hyper to let go of the client.
pub(crate) async fn connect(
    shared: &Shared,
    client: &Client,
    mut request: Request<Incoming>,
) -> Response<AnswerBody> {
    let _hold = client.clock.hold();
    let target = match Target::of_connect(request.uri()) {
        Ok(target) => target,
        Err(error) => {
            shared.metrics.refused(Refusal::RequestInvalid);
            return target_answer(error);
        }
    };
    match shared.dialer.dial(&target).await {
        Ok(stream) => {
            let upgrade = hyper::upgrade::on(&mut request);
            let granted = Granted {
                upgrade,
                target: stream,
            };
            client.grant(granted);
            Response::new(AnswerBody::Empty)
        }
        Err(refusal) => {
            shared.metrics.refused(refusal);
            refusal.answer()
        }
    }
}

/// Copies until the tunnel ends.
pub(crate) async fn serve_tunnel(shared: &Shared, granted: Granted) {
    let Granted {
        upgrade,
        mut target,
    } = granted;
    let Some((mut client, early)) = upgrade.await.ok().and_then(client_stream) else {
        return;
    };
    let metrics = &shared.metrics;
    let _open = Metrics::counted(&metrics.open_tunnels);
    let counters = [&metrics.sent_bytes, &metrics.received_bytes];
    let end = copy_both_ways(&mut client, early, &mut target, shared.idle, counters).await;
    if end == TunnelEnd::Broken {
        // A cut must look like one: an orderly end would make half a file look whole.
        let _ = client.set_zero_linger();
        let _ = target.set_zero_linger();
    }
}

/// The client's stream out of hyper's hands, with what it already read.
fn client_stream(upgraded: Upgraded) -> Option<(TcpStream, Bytes)> {
    let parts = upgraded.downcast::<TokioIo<ClockedStream>>().ok()?;
    Some((parts.io.into_inner().into_stream(), parts.read_buf))
}
