package daemon

import (
	"errors"
	"io"
	"time"
)

// Accepts says why a token is not one that this server accepts of a node; nil if it is.
func (s *Server) Accepts(node, token string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.credentials == nil {
		return ErrNotServing
	}
	_, err := s.credentials.Ring().Tokens().VerifyBy(s.credentials.Book(), token, node, time.Now())
	return err
}

// Revoked reports whether the tokens of a node were revoked, and it has used no new one since.
func (s *Server) Revoked(node string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.credentials == nil {
		return false
	}
	_, is := s.credentials.Book().Revoked()[node]
	return is
}

// Runs is the version of the program of a child; see specserve.Server.
func (s *Server) Runs(node string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server == nil {
		return ""
	}
	return s.server.Runs(node)
}

// errNoProgram says that the file of the program is not known.
var errNoProgram = errors.New("the server has no program for children")

// Program is the checksum of the program that children get, SHA-256 in hex, and its version.
func (s *Server) Program() (sum, version string, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.program == nil {
		return "", "", errNoProgram
	}
	return s.program.Sum(), s.o.Version, nil
}

// OpenProgram reads that program. It may be closed with the server, and then reading fails.
func (s *Server) OpenProgram() (io.ReadCloser, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.program == nil {
		return nil, errNoProgram
	}
	return io.NopCloser(s.program.Reader()), nil
}
