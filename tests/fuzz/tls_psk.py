# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 with an external pre-shared key, as agents use it, for programs that play an agent. Python's ssl module has no such keys
before 3.13, so this calls OpenSSL itself."""

import ctypes as c
import pathlib

_ssl, _crypto = c.CDLL("libssl.so.3"), c.CDLL("libcrypto.so.3")
_P = c.c_void_p


def _function(name, result, *arguments, library=_ssl):
    fn = getattr(library, name)
    fn.restype, fn.argtypes = result, arguments
    return fn


_method = _function("TLS_method", _P)
_ctx_new = _function("SSL_CTX_new", _P, _P)
_ctx_ctrl = _function("SSL_CTX_ctrl", c.c_long, _P, c.c_int, c.c_long, _P)
_ciphersuites = _function("SSL_CTX_set_ciphersuites", c.c_int, _P, c.c_char_p)
_new = _function("SSL_new", _P, _P)
_free = _function("SSL_free", None, _P)
_set_fd = _function("SSL_set_fd", c.c_int, _P, c.c_int)
_accept = _function("SSL_set_accept_state", None, _P)
_connect = _function("SSL_set_connect_state", None, _P)
_handshake = _function("SSL_do_handshake", c.c_int, _P)
_read = _function("SSL_read_ex", c.c_int, _P, _P, c.c_size_t, c.POINTER(c.c_size_t))
_write = _function("SSL_write_ex", c.c_int, _P, c.c_char_p, c.c_size_t, c.POINTER(c.c_size_t))
_error = _function("SSL_get_error", c.c_int, _P, c.c_int)
_export = _function("SSL_export_keying_material", c.c_int, _P, c.c_char_p, c.c_size_t, c.c_char_p, c.c_size_t, c.c_char_p, c.c_size_t,
                    c.c_int)
_session_new = _function("SSL_SESSION_new", _P)
_session_key = _function("SSL_SESSION_set1_master_key", c.c_int, _P, c.c_char_p, c.c_size_t)
_session_cipher = _function("SSL_SESSION_set_cipher", c.c_int, _P, _P)
_session_version = _function("SSL_SESSION_set_protocol_version", c.c_int, _P, c.c_int)
_cipher = _function("SSL_CIPHER_find", _P, _P, c.c_char_p)
_clear = _function("ERR_clear_error", None, library=_crypto)
_OFFER = c.CFUNCTYPE(c.c_int, _P, _P, c.POINTER(c.c_char_p), c.POINTER(c.c_size_t), c.POINTER(_P))
_FIND = c.CFUNCTYPE(c.c_int, _P, _P, c.c_size_t, c.POINTER(_P))
_set_offer = _function("SSL_CTX_set_psk_use_session_callback", None, _P, _OFFER)
_set_find = _function("SSL_CTX_set_psk_find_session_callback", None, _P, _FIND)

_MIN_PROTOCOL, _VERSION, _WANT = 123, 0x0304, (2, 3)  # SSL_CTRL_SET_MIN_PROTO_VERSION, TLS 1.3, WANT_READ and WANT_WRITE
_BUFFER = 1 << 16


class Key:
    """What all connections with one key file share."""

    def __init__(self, path, identity=b"dray"):
        self._key, self._identity = bytes.fromhex(pathlib.Path(path).read_text().strip()), identity
        self.ctx = _ctx_new(_method())
        _ctx_ctrl(self.ctx, _MIN_PROTOCOL, _VERSION, None)
        assert _ciphersuites(self.ctx, b"TLS_AES_128_GCM_SHA256") == 1
        # ctypes needs them for as long as OpenSSL may call them
        self._callbacks = _OFFER(self._offer), _FIND(self._find)
        _set_offer(self.ctx, self._callbacks[0])
        _set_find(self.ctx, self._callbacks[1])

    def _session(self, ssl):
        session = _session_new()
        assert _session_key(session, self._key, len(self._key)) and _session_version(session, _VERSION)
        assert _session_cipher(session, _cipher(ssl, b"\x13\x01"))
        return session

    def _offer(self, ssl, md, identity, length, session):
        identity[0], length[0], session[0] = self._identity, len(self._identity), self._session(ssl)
        return 1

    def _find(self, ssl, identity, length, session):
        session[0] = self._session(ssl)
        return 1


class Closed(Exception):
    pass


class Connection:
    """TLS over a non-blocking socket."""

    def __init__(self, key, sock, server):
        self.ssl, self.sock = _new(key.ctx), sock
        _set_fd(self.ssl, sock.fileno())
        (_accept if server else _connect)(self.ssl)
        self.open = False
        self._buffer = c.create_string_buffer(_BUFFER)

    def _done(self, result):
        if result == 1:
            return True
        if _error(self.ssl, result) in _WANT:
            return False
        raise Closed

    def handshake(self):
        """True once it is complete."""
        _clear()
        self.open = self.open or self._done(_handshake(self.ssl))
        return self.open

    def receive(self):
        """The bytes that have arrived, b"" for none."""
        _clear()
        n = c.c_size_t()
        return self._buffer.raw[:n.value] if self._done(_read(self.ssl, self._buffer, _BUFFER, n)) else b""

    def send(self, data):
        """Returns the number of bytes that were taken."""
        _clear()
        n = c.c_size_t()
        return n.value if self._done(_write(self.ssl, data, len(data), n)) else 0

    def export(self, label, context, length):
        out = c.create_string_buffer(length)
        assert _export(self.ssl, out, length, label, len(label), context, len(context), 1) == 1
        return out.raw

    def close(self):
        _free(self.ssl)
        self.sock.close()
