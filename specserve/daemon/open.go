package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/homestak/homestak-gitops/specserve"
)

// Folder is the folder of keys and certificate, in the data folder.
const Folder = "server"

// spoolFolder is the folder of temporary files. They have no names, so none is left over.
const spoolFolder = "tmp"

// retryAfter is the pause before a retry.
const retryAfter = 15 * time.Second

// opened is a server with the files that it needs.
type opened struct {
	server      *specserve.Server
	credentials *credentialsKeeper
	program     *specserve.Program // for new nodes; nil: they get none from here
}

// open opens the files and makes a server, which does not listen yet. The options lack what follows from the files. The
// caller closes the result, also after an error.
func open(files credentialsOptions, program string, o specserve.Options) (s opened, err error) {
	if s.credentials, err = openCredentials(files); err != nil {
		return s, err
	}
	o.Spool = filepath.Join(files.Access.Dir, spoolFolder)
	if err := os.MkdirAll(o.Spool, 0o700); err != nil {
		return s, fmt.Errorf("make the folder of temporary files: %w", err)
	}
	if program != "" {
		if s.program, err = specserve.OpenProgram(program); err != nil {
			return s, err
		}
	}
	o.Program, o.TLS = s.program, s.credentials.Certificate().TLS()
	s.server = specserve.New(o)
	return s, nil
}

// publish makes a view what requests see, with the keys as they are now.
func (s *opened) publish(v specserve.View) {
	c := s.credentials
	v.Keys, v.Book, v.Access, v.Pins, v.Signer = c.Ring().Tokens(), c.Book(), c.Access(), c.Certificate().Pins(), c.Certificate().Key()
	s.server.Publish(v)
}

// close frees the files, once the server has ended.
func (s *opened) close() {
	if s.credentials != nil {
		s.credentials.Close()
	}
	if s.program != nil {
		_ = s.program.Close()
	}
}
