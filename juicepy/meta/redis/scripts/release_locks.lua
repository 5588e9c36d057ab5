-- Delete from the hashes that a set names the fields that begin with a prefix, then the set.
-- KEYS[1]  the set
-- ARGV[1]  the prefix

for _, hash in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    if string.sub(field, 1, #ARGV[1]) == ARGV[1] then redis.call('HDEL', hash, field) end
  end
end
return redis.call('DEL', KEYS[1])
