package model

// Place is a PVE node as it was observed, with what new guests may take of it.
type Place struct {
	Name   string
	Closed string // why no guest is created there, such as "offline"; "" if one may be
	Memory int    // MiB; 0 if not known
	Cores  int    // 0 if not known
	Others Size   // of running guests that are not managed
	Rooms  map[string]Room
}

// Room is the free space of a storage on a PVE node.
type Room struct {
	Free   int  // GiB
	Shared bool // all PVE nodes have the same storage of this name
}

// Size is what guests take of a PVE node.
type Size struct {
	Memory int            // MiB
	Cores  int            // in all sockets
	Disks  map[string]int // GiB of new volumes, by storage
}

// Add adds the size of another guest.
func (s *Size) Add(o Size) {
	s.Memory += o.Memory
	s.Cores += o.Cores
	for storage, gib := range o.Disks {
		if s.Disks == nil {
			s.Disks = map[string]int{}
		}
		s.Disks[storage] += gib
	}
}
