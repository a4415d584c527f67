package objects

import (
	"bufio"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/go-git/go-git/v5/plumbing"
	pool "github.com/go-git/go-git/v5/utils/sync"
)

// WritePack writes a pack of objects, each in full. Only one of them is in memory at a
// time; go-git's own encoder holds them all.
func (s *Store) WritePack(w io.Writer, ids []plumbing.Hash) error {
	sum := sha1.New()
	out := bufio.NewWriter(io.MultiWriter(w, sum))
	_, _ = out.Write(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(ids))))
	z := pool.GetZlibWriter(out)
	defer pool.PutZlibWriter(z)
	for _, id := range ids {
		kind, data, err := s.read(id, math.MaxInt64)
		if err != nil {
			return fmt.Errorf("object %s: %w", id, err)
		}
		c, rest := byte(kind)<<4|byte(len(data)&15), len(data)>>4
		for ; rest > 0; rest >>= 7 {
			_ = out.WriteByte(c | 0x80)
			c = byte(rest & 0x7f)
		}
		_ = out.WriteByte(c)
		z.Reset(out)
		_, err = z.Write(data)
		if err = errors.Join(err, z.Close()); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil { // also of the writes before
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}
