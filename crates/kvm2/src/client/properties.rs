//! Whatever arrives, nothing panics, and no more is reserved than has arrived.

use super::{
    errors::ServerError,
    frame::{Frame, Header, LONGEST, MessageType, OVERHEAD, Status},
    uri::HostUri,
    xdr::{Reader, Writer},
};
use proptest::prelude::*;

fn header() -> impl Strategy<Value = Header> {
    let kinds = prop_oneof![
        Just(MessageType::Call),
        Just(MessageType::Reply),
        Just(MessageType::Event),
        Just(MessageType::Stream)
    ];
    let states = prop_oneof![
        Just(Status::Ok),
        Just(Status::Error),
        Just(Status::Continue)
    ];
    (any::<u32>(), any::<u32>(), kinds, any::<u32>(), states).prop_map(
        |(program, procedure, kind, serial, status)| Header {
            program,
            procedure,
            kind,
            serial,
            status,
        },
    )
}

fn read(mut bytes: &[u8]) -> Result<Frame, super::frame::Unreadable> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(Frame::read(&mut bytes))
}

proptest! {
    #[test]
    fn a_message_reads_back_as_it_was_written(
        header in header(),
        body in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let frame = Frame { header, body };
        let bytes = frame.encode().unwrap();
        prop_assert_eq!(read(&bytes).unwrap(), frame);
        // A part of it is no message.
        prop_assert!(read(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(frame) = read(&bytes) {
            prop_assert!(frame.body.len() + OVERHEAD <= bytes.len());
            // Short as it is, its memory is.
            prop_assert!(frame.body.capacity() <= 2 * bytes.len());
        }
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_anything_is_reserved(
        length in prop_oneof![0_u32..28, (LONGEST as u32 + 1)..u32::MAX],
        rest in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(rest);
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _answer_or_error = ServerError::decode(&body);
        let mut reader = Reader::new(&body);
        let items = reader.list(16_384, |item| Ok((item.text()?, item.optional()?, item.u64()?)));
        if let Ok(items) = items {
            prop_assert!(items.len() * 16 <= body.len());
            prop_assert!(items.capacity() <= body.len() / 4);
        }
        let _taken = reader.fixed(usize::MAX);
    }

    #[test]
    fn texts_read_back(text in ".{0,200}", other in proptest::option::of(".{0,20}")) {
        let bytes = Writer::new().text(&text).optional(other.as_deref()).into_bytes();
        prop_assert_eq!(bytes.len() % 4, 0);
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(reader.text().unwrap(), text);
        prop_assert_eq!(reader.optional().unwrap(), other);
        prop_assert!(reader.end().is_ok());
    }

    #[test]
    fn any_text_is_a_uri_or_is_refused(text in "(qemu(\\+tls|\\+ssh|\\+unix)?://)?[ -~]{0,40}(/system)?(\\?socket=.{0,10})?") {
        if let Ok(uri) = text.parse::<HostUri>() {
            prop_assert_eq!(uri.as_str(), text.as_str());
            prop_assert_eq!(uri.to_string().parse::<HostUri>().unwrap(), uri);
        }
    }
}
